"""The rules of a call, without input or output: generators that yield what to do (`Send`, `Pause`) and get its result.

The blocking and the asyncio client run the same generators, so each rule is written once.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union

from . import _telemetry, options
from . import contents as _contents
from .errors import Cause, NotCanonical, Rejected, Unavailable
from .events import log_event
from .values import Event

#: Where neither the caller nor `ONCEGATE_URL` names a gateway.
DEFAULT_URL = "http://127.0.0.1:8080"
#: The longest wait of one HTTP call: below the gateway's `limits.wait_max`.
WAIT_OF_A_CALL_MAX = 20.0
#: The longest pause after the first round through all gateways, and after a call that has waited.
PAUSE_MIN = 0.05

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: str | None
    #: The member that an answer of a gateway with status 200 to 202 has.
    answers_with: str = "global_id"


@dataclass(frozen=True)
class Send:
    """Send the request to the gateway at this position, within `timeout` seconds; the result is a `Reply` or a `Cause`."""

    at: int
    request: Request
    timeout: float


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Behind:
    """Run the flow in the background; it begins with a pause."""

    flow: Flow[None]


@dataclass(frozen=True)
class Reply:
    status: int
    body: dict[str, Any]


@dataclass(frozen=True)
class Answered:
    status: int
    body: dict[str, Any]
    #: The position of the gateway, and the times by the monotonic clock when its request was sent and answered.
    at: int
    sent: float
    came: float

    @property
    def lease_ends(self) -> float:
        """The end of the lease that it grants. It began when the wait ended: after `waited_ms`, and before the answer came."""
        began = min(self.sent + self.body.get("waited_ms", 0) / 1000, self.came)
        return float(began + self.body.get("lease_ms", 0) / 1000)

    def pause_after(self, asked: float) -> float:
        """The pause before the next call of a wait: short after a call that has waited, otherwise the pause that the gateway asks for."""
        pause = float(self.body.get("retry_after_ms", 1000)) / 1000
        return min(pause, PAUSE_MIN) if asked > 0 and self.body.get("waited_ms", 0) > 0 else pause


Flow = Generator[Union[Send, Pause, "Behind"], Any, T]


@dataclass(frozen=True)
class Limits:
    """Limits of the calls of one claim: those of the client, unless a caller has its own."""

    claim_within: float
    settle_within: float | None
    proceeds: bool


class Core:
    """Options of a client, and what its calls share."""

    def __init__(
        self,
        urls: list[str] | None,
        credential: str | None,
        timeout: options.Duration,
        claim_within: options.Duration,
        settle_within: options.Duration | None,
        on_unavailable: str,
        on_event: Callable[[Event], None] | None,
        traceparent: Callable[[], str | None] | None,
        nothing_happened: Any = (),
        enabled: bool = True,
    ):
        if not isinstance(enabled, bool):
            raise TypeError(f"enabled is True or False, got {enabled!r}")
        self.enabled = enabled and not options.disabled_by_environment()
        if urls is None:
            urls, credential = [os.environ.get("ONCEGATE_URL") or DEFAULT_URL], credential or os.environ.get("ONCEGATE_CREDENTIAL")
        if isinstance(urls, str) or not urls:
            raise ValueError("urls is a list of one or more gateways, such as ['http://10.0.0.5:8080']")
        self.urls = [options.url(url) for url in urls]
        self.credential = options.credential(credential)
        self.app = self.credential.rpartition(".")[0] if self.credential else "default"
        self.timeout: float = options.seconds("timeout", timeout) or 0.0
        self.limits = Limits(
            options.seconds("claim_within", claim_within) or 0.0,
            options.seconds("settle_within", settle_within, optional=True),
            options.choice("on_unavailable", on_unavailable, ("fail_closed", "proceed")) == "proceed",
        )
        self.nothing_happened = options.exceptions("nothing_happened", nothing_happened)
        self.on_event = on_event or log_event
        self.traceparent = traceparent or _telemetry.traceparent
        self.clock: Callable[[], float] = time.monotonic
        #: The gateway that answered last is called first. So a gateway that is down costs one timeout, not one for each call.
        self.first = 0
        if not self.enabled:
            self.emit("disabled", "-", None, self.clock())

    def emit(self, name: str, operation: str, global_id: str | None, began: float, **fields: Any) -> None:
        event = Event(name, operation, global_id, fields, self.clock() - began)
        _telemetry.count_event(name, operation)
        try:
            self.on_event(event)
        except Exception:
            # The work must not suffer from a faulty hook, and the fault must be seen.
            log_event(Event("hook_failed", operation, global_id, {"event": name}), failed=True)

    def headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "User-Agent": USER_AGENT, "Accept": "application/json"}
        if self.credential:
            headers["Authorization"] = f"Bearer {self.credential}"
        trace = self.traceparent()
        if trace and trace.isascii() and trace.isprintable():
            headers["traceparent"] = trace
        return headers


USER_AGENT = "oncegate-python/0.1.0"


@dataclass
class Scope:
    """One call of the user: its events, its first gateway, and what has happened to it."""

    core: Core
    operation: str
    global_id: str | None
    began: float
    cancelled: bool = False
    has_waited: bool = False
    #: A try of it may have had an effect, although no answer came.
    acted: bool = False

    def __post_init__(self) -> None:
        self.limits = self.core.limits

    def emit(self, name: str, **fields: Any) -> None:
        self.core.emit(name, self.operation, self.global_id, self.began, **fields)


def fresh_nonce() -> str:
    return secrets.token_hex(16)


def call(scope: Scope, request: Request, within: float | None, *, start: int | None = None, wait: float = 0.0) -> Flow[Answered]:
    """Calls one gateway after the other until one has answered.

    Raises `Rejected`, or `Unavailable` without an event: the caller knows what that means.
    """
    core = scope.core
    ends = None if within is None else core.clock() + within + wait
    start = core.first if start is None else start
    causes: dict[int, Cause] = {}
    resent, acted, tries = False, False, 0
    hints: list[float | None] = []
    while True:
        at = (start + tries) % len(core.urls)
        # The lease counts from here: the answer may take long.
        sent = core.clock()
        limit = core.timeout + wait
        left = limit if ends is None else min(limit, max(ends - sent, 0.001))
        reply = yield Send(at, request, left)
        if isinstance(reply, Reply):
            if reply.status in (200, 201, 202, 409) or (reply.status == 422 and is_mismatch(reply.body)):
                core.first = at
                return Answered(reply.status, reply.body, at, sent, max(core.clock(), sent))
            if 400 <= reply.status < 500 and reply.status != 429:
                raise Rejected(reply.status, reply.body)
            cause = _cause(core.urls[at], reply)
        else:
            cause = reply
        scope.emit("retry", cause=cause)
        acted |= cause.may_have_acted
        scope.acted |= acted
        # A try that was cut short by the end of the time says nothing new.
        if cause.kind != "timeout" or left == limit or at not in causes:
            causes[at] = cause
        if scope.cancelled:
            raise Unavailable(list(causes.values()), acted)
        if cause.kind == "connection" and not resent:
            # Most likely a kept connection that had been closed. The nonce or the attempt in the call is recognised.
            resent = True
            continue
        tries += 1
        quota = cause.status == 429
        hint = reply.body.get("retry_after_ms") if isinstance(reply, Reply) else None
        pause = (1000 if hint is None else hint) / 1000 if quota else 0.0
        hints.append(None if quota or hint is None else hint / 1000)
        if tries % len(core.urls) == 0:
            # Full jitter: callers that failed together do not come back together.
            pause = max(pause, random.uniform(0, min(1.0, PAUSE_MIN * 2 ** min(tries // len(core.urls), 10))))
            known = [hint for hint in hints if hint is not None]
            pause = max(pause, min(known)) if len(known) == len(hints) else pause
            hints = []
        if ends is not None and core.clock() + pause >= ends:
            if quota and isinstance(reply, Reply):
                raise Rejected(reply.status, reply.body)
            raise Unavailable(list(causes.values()), acted)
        if pause:
            yield Pause(pause)


def find(scope: Scope, request: Request) -> Flow[dict[str, Any] | None]:
    """Makes a lookup. None: not found."""
    try:
        answered = yield from call(scope, request, scope.limits.claim_within)
    except Rejected as rejected:
        if rejected.status == 404 and rejected.code == "not_found":
            return None
        raise
    except Unavailable as unavailable:
        scope.emit("unavailable", causes=unavailable.causes)
        raise
    return answered.body


def is_mismatch(body: dict[str, Any]) -> bool:
    return str(body.get("code")).endswith("_mismatch")


def _cause(url: str, reply: Reply) -> Cause:
    body = reply.body
    detail = f"{reply.status} {body.get('code')}: {body.get('detail')}"
    return Cause(url, "answer", detail, reply.status, body.get("code"), body.get("request_id"))


@dataclass(frozen=True)
class ClaimTerms:
    """A claim call, checked and ready to be sent. All its repeats carry the same nonce."""

    operation: str
    #: In canonical form.
    contents: str
    global_id: str
    wait: str | None
    #: The other members of the body; `fingerprint` is canonical JSON.
    fields: dict[str, Any]
    fingerprint: str | None
    nonce: str = field(default_factory=fresh_nonce)
    #: True if the caller of a service has asked for the wait.
    prefers_wait: bool = False

    def body(self, wait: str | None) -> str:
        members = {"operation": self.operation, "attempt_nonce": self.nonce, "wait": wait, **self.fields}
        return json_object(members, contents=self.contents, fingerprint=self.fingerprint)


def claim_terms(
    core: Core,
    operation: str,
    contents: Any,
    *,
    fingerprint: Any = None,
    lease: options.Duration | None = None,
    retention: options.Duration | None = None,
    take_over: bool = False,
    on_lease_end: str | None = None,
    wait: options.Duration | None = None,
) -> ClaimTerms:
    options.operation(operation)
    if not isinstance(take_over, bool):
        raise TypeError(f"take_over is True or False, got {take_over!r}")
    if on_lease_end not in (None, "unknown"):
        raise ValueError(f"on_lease_end is 'unknown' or None, got {on_lease_end!r}; `release` is a term that operators give an operation")
    text = _contents.canonical(contents)
    fields = {
        "lease": options.duration("lease", lease),
        "retention": options.duration("retention", retention, forever=True),
        "take_over": take_over or None,
        "on_lease_end": on_lease_end,
    }
    mark = None if fingerprint is None else _contents.canonical_fingerprint(fingerprint)
    global_id = _contents.id_of(core.app, operation, text)
    return ClaimTerms(operation, text, global_id, options.duration("wait", wait), fields, mark)


def wait_of_call(whole: str | None, left: float, first: bool) -> tuple[str | None, float]:
    """The wait of one call, as text and in seconds: as given in the first call, what is left of it in the next ones."""
    if whole is None:
        return None, 0.0
    if first and options.duration_seconds(whole) <= WAIT_OF_A_CALL_MAX:
        return whole, left
    milliseconds = int(min(left, WAIT_OF_A_CALL_MAX) * 1000)
    return (f"{milliseconds}ms" if milliseconds > 0 else None), milliseconds / 1000


def json_object(fields: dict[str, Any], **encoded: str | None) -> str:
    """A JSON object of the fields that are not None, and of those that are JSON already."""
    members = [f"{json.dumps(name)}:{json.dumps(value)}" for name, value in fields.items() if value is not None]
    members += [f'"{name}":{text}' for name, text in encoded.items() if text is not None]
    return "{" + ",".join(members) + "}"


def contents_of_report(value: Any) -> str | None:
    """Contents of a report in canonical form; None where they are not usable."""
    try:
        return _contents.canonical(_contents.JsonText(json.dumps(value)))
    except NotCanonical:
        return None
