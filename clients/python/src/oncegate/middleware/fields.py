"""Header fields of responses: which are stored, which are replayed, and which only the service and its middleware use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Fields = list[tuple[str, str]]

OUTCOME = "oncegate-outcome"
REPLAYED = "idempotent-replayed"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "te", "transfer-encoding", "upgrade"})
#: They belong to one caller, or each replay gets its own.
_NEVER_STORED = frozenset({"set-cookie", "set-cookie2", "www-authenticate", "content-length", "date", REPLAYED})
#: Statuses of responses without a body.
WITHOUT_BODY = frozenset({204, 205, 304})
#: Statuses of responses without a length.
WITHOUT_LENGTH = frozenset({204, 304})
#: Fields of a request that a handler does not see: its response must fit every caller.
HIDDEN = frozenset({"accept-encoding", "range", "if-range"})


@dataclass(frozen=True)
class StoredFields:
    """Changes to the default list of stored fields."""

    with_: frozenset[str]
    without: frozenset[str]

    @classmethod
    def of(cls, with_: Sequence[str], without: Sequence[str]) -> StoredFields:
        names = {"store_with": with_, "store_without": without}
        for option, given in names.items():
            if isinstance(given, str) or not all(isinstance(name, str) and _TOKEN.match(name) for name in given):
                raise ValueError(f"{option} is a list of field names, such as ['X-Session']; got {given!r}")
        for name in with_:
            if _is_never_storable(name.lower()):
                raise ValueError(f"store_with has {name!r}, which concerns one connection or one response; leave it out")
        return cls(frozenset(name.lower() for name in with_), frozenset(name.lower() for name in without))

    def select(self, fields: Iterable[tuple[str, str]]) -> Fields:
        fields = [(name.lower(), value) for name, value in fields]
        named = {part.strip().lower() for name, value in fields if name == "connection" for part in value.split(",")}
        kept = []
        for name, value in fields:
            is_default = name not in _NEVER_STORED and not _is_never_storable(name) and name not in named
            if (is_default or name in self.with_) and name not in self.without:
                kept.append((name, value))
        return kept


def _is_never_storable(name: str) -> bool:
    own = name.startswith(("oncegate-", "oncegate_"))
    return name in _HOP_BY_HOP or name in ("content-length", "date") or name.startswith("proxy-") or own


def is_field(pair: Any) -> bool:
    """Reports whether a pair of a stored response is a field that can be sent."""
    if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(each, str) for each in pair)):
        return False
    name, value = pair
    return bool(_TOKEN.match(name)) and all(ord(each) < 256 and each not in "\r\n\0" for each in value)


def first(fields: Fields, name: str) -> str | None:
    return next((value for each, value in fields if each.lower() == name), None)


def without(fields: Fields, *names: str) -> Fields:
    return [(name, value) for name, value in fields if name.lower() not in names]
