"""Options of the middleware, checked when it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .. import options
from . import incoming
from .fields import StoredFields
from .problems import Problem

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT", "QUERY"})
STORE = ("2xx", "301", "302", "303", "4xx")
RELEASE = ("307", "308", "401", "403", "405", "407", "408", "413", "421", "425", "429")
#: Of a repeat, whose caller holds a connection for it.
WAIT_SECONDS_MAX = 3600
Meaning = Literal["unknown", "store", "release"]


def shared_keys(_: Any) -> str:
    """The `principal` of a service whose callers share their keys: everyone who knows a key gets its response."""
    return ""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Options of the middleware.

    `operation` names what the keys belong to: two services with one operation would share keys. `principal` distinguishes callers, such as
    by the user's id: it gets the request of the framework, and a keyed request without one is refused.
    """

    operation: str
    principal: Callable[[Any], Any]
    #: None: all unsafe methods.
    methods: Sequence[str] | None = None
    #: Of the framework's request; false: it passes unprotected.
    when: Callable[[Any], bool] | None = None
    #: Refuses requests without a key.
    required: bool = False
    fingerprint: Sequence[str] = incoming.PARTS
    store: Sequence[str] = STORE
    release: Sequence[str] = RELEASE
    on_5xx: Meaning = "unknown"
    #: Exceptions of work that had no effect: the key is free again. Their subclasses count.
    nothing_happened: tuple[type[BaseException], ...] = ()
    lease: options.Duration | None = None
    retention: options.Duration | None = None
    #: How long a repeat waits while the first request is running, at most an hour; its field `Prefer: wait=…` comes first.
    wait: options.Duration | None = None
    body_bytes: int = 1024 * 1024
    response_bytes: int = 45 * 1024
    store_with: Sequence[str] = ()
    store_without: Sequence[str] = ()
    #: Stores responses with `Cache-Control: no-store`.
    store_private: bool = False
    #: No claim is renewed for longer.
    exchange_max: options.Duration = "5m"
    #: None: those of the client.
    claim_within: options.Duration | None = None
    settle_within: options.Duration | None = None
    on_unavailable: Literal["fail_closed", "proceed"] | None = None
    #: A caller that goes away stops its handler, as without the middleware; the outcome is unknown then.
    stop_when_gone: bool = False
    #: Makes the framework's response of a refusal.
    render: Callable[[Problem], Any] | None = None
    #: Refuses and replays nothing, and counts what it would have done.
    observe: bool = False
    enabled: bool = True
    stored_fields: StoredFields = field(init=False, repr=False)

    def __post_init__(self) -> None:
        options.operation(self.operation)
        if not callable(self.principal):
            raise TypeError(
                "principal is a function of the request, such as principal=lambda request: str(request.user.id), or shared_keys"
            )
        for name in ("when", "render"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise TypeError(f"{name} is a function, or None")
        for name in ("required", "store_private", "stop_when_gone", "observe", "enabled"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} is True or False, got {getattr(self, name)!r}")
        for name in ("lease", "wait", "claim_within", "settle_within", "exchange_max"):
            options.duration(name, getattr(self, name))
        options.duration("retention", self.retention, forever=True)
        if (options.duration_in_seconds(self.wait) or 0) > WAIT_SECONDS_MAX:
            raise ValueError(f"wait is at most an hour, such as wait='10s'; got {self.wait!r}")
        for name in ("body_bytes", "response_bytes"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"{name} is a number of bytes from 1, got {getattr(self, name)!r}")
        options.choice("on_5xx", self.on_5xx, ("unknown", "store", "release"))
        if self.on_unavailable is not None:
            options.choice("on_unavailable", self.on_unavailable, ("fail_closed", "proceed"))
        object.__setattr__(self, "methods", _methods(self.methods))
        object.__setattr__(self, "fingerprint", _parts(self.fingerprint))
        store, release = _both_lists(self.store, self.release)
        object.__setattr__(self, "store", store)
        object.__setattr__(self, "release", release)
        object.__setattr__(self, "nothing_happened", options.exceptions("nothing_happened", self.nothing_happened))
        object.__setattr__(self, "stored_fields", StoredFields.of(self.store_with, self.store_without))

    @property
    def is_enabled(self) -> bool:
        return self.enabled and not options.disabled_by_environment()

    def protects(self, method: str) -> bool:
        return method not in SAFE_METHODS and (self.methods is None or method in self.methods)

    def meaning(self, status: int) -> Meaning:
        """The meaning of a response by its status. An exact status beats a class, and `release` beats `store`."""
        for name in (str(status), f"{status // 100}xx"):
            if name in self.release:
                return "release"
            if name in self.store:
                return "store"
        return self.on_5xx if status >= 500 else "unknown"


def _methods(methods: Any) -> frozenset[str] | None:
    if methods is None:
        return None
    if isinstance(methods, str) or not methods or not all(isinstance(each, str) and each.isupper() for each in methods):
        raise ValueError(f"methods is a list of unsafe methods, such as ['POST', 'PATCH']; got {methods!r}")
    safe = SAFE_METHODS & set(methods)
    if safe:
        raise ValueError(f"methods has {', '.join(sorted(safe))}, which changes nothing, so it needs no key; leave it out")
    return frozenset(methods)


def _parts(parts: Any) -> tuple[str, ...]:
    known = (*incoming.PARTS, "body:json")
    if isinstance(parts, str) or not parts or not all(each in known for each in parts):
        raise ValueError(f"fingerprint is a list of {', '.join(known)}; got {parts!r}")
    if "body" in parts and "body:json" in parts:
        raise ValueError("fingerprint has body and body:json; leave one out")
    return tuple(parts)


def _both_lists(given_store: Any, given_release: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Both lists, checked. A status that one of them names leaves the default of the other."""
    store, release = _statuses("store", given_store), _statuses("release", given_release)
    both = set(store) & set(release)
    if not both:
        return (STORE if given_store is STORE else store), (RELEASE if given_release is RELEASE else release)
    if given_store is STORE:
        return tuple(each for each in store if each not in both), release
    if given_release is RELEASE:
        return store, tuple(each for each in release if each not in both)
    raise ValueError(f"{', '.join(sorted(both))} is in store and in release; leave it in one")


def _statuses(name: str, statuses: Any) -> tuple[str, ...]:
    texts = [str(each) for each in statuses] if not isinstance(statuses, str) else ["?"]
    for text in texts:
        is_class = len(text) == 3 and text[0] in "2345" and text[1:] == "xx"
        if not is_class and not (text.isascii() and text.isdigit() and 200 <= int(text) <= 599):
            raise ValueError(f"{name} is a list of statuses such as '404' and classes such as '2xx'; got {statuses!r}")
    return tuple(texts)


__all__ = ["Meaning", "Rules", "shared_keys"]
