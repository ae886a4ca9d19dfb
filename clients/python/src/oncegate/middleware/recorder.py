"""Record of a response on its way to the caller: the fields and bytes that pass, and the form that is stored."""

from __future__ import annotations

import base64
import binascii
import time
from dataclasses import dataclass
from typing import Any

from .._results import RESULT_BYTES_MAX, compact
from . import fields as _fields
from .fields import Fields
from .problems import Problem
from .rules import Rules

VERSION = 1
#: Of all fields that are stored, and of a field of a tombstone. No server of Python sends trailers.
FIELDS_BYTES_MAX = 32 * 1024
_TOMBSTONE = ("location", "etag")


class Recorder:
    """Keeps a copy of a response while it passes."""

    def __init__(self, rules: Rules, degraded: str | None):
        self._rules, self.degraded = rules, degraded
        self.status = 0
        #: As the handler sent them, but for those that are for the middleware only.
        self.fields: Fields = []
        self.outcome: str | None = None
        self._length: int | None = None
        self._size = 0
        self._body = bytearray()

    @property
    def has_begun(self) -> bool:
        return self.status != 0

    def begin(self, status: int, fields: Fields) -> Fields:
        """Takes the head. Returns the fields to send."""
        self.status = status
        said = [value for name, value in fields if name.lower() == _fields.OUTCOME]
        self.outcome = ", ".join(said) if said else None
        # Layers outside change the lists that they are given, so these are copies.
        self.fields = _fields.without(fields, _fields.OUTCOME, _fields.REPLAYED)
        if status in _fields.WITHOUT_BODY:
            self.fields = _fields.without(self.fields, "content-length")
            self.fields += [] if status in _fields.WITHOUT_LENGTH else [("Content-Length", "0")]
        length = _fields.first(self.fields, "content-length")
        self._length = int(length) if length is not None and length.isascii() and length.isdigit() else None
        own = [("Oncegate-Degraded", self.degraded)] if self.degraded else []
        return [*self.fields, *own]

    @property
    def is_without_body(self) -> bool:
        """True if the head alone is the whole response."""
        return self.status in _fields.WITHOUT_BODY or self._length == 0

    def add(self, piece: bytes) -> bytes:
        """Takes a piece of the body. Returns the bytes to send."""
        if self.status in _fields.WITHOUT_BODY:
            return b""
        self._size += len(piece)
        if self._size <= self._rules.response_bytes:
            self._body += piece
        else:
            self._body.clear()
        return piece

    @property
    def is_filled(self) -> bool:
        """True if the declared length has come."""
        return self._length is not None and self._size >= self._length

    @property
    def breaks_off(self) -> bool:
        """True if an end of the body now would come too early, or has come too late: servers break such a response off, or cut it."""
        if self.status in _fields.WITHOUT_BODY:
            return False
        return self._length is not None and self._size != self._length

    def results(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The stored form, and the tombstone to store where that is refused."""
        at = int(time.time())
        kept = self._rules.stored_fields.select(self.fields)
        left = [(name, value) for name in _TOMBSTONE if (value := _fields.first(kept, name)) and len(value) <= FIELDS_BYTES_MAX]
        tombstone = {"v": VERSION, "status": self.status, "at": at, "fields": [list(pair) for pair in left]}
        too_long = self._size > self._rules.response_bytes or sum(len(name) + len(value) for name, value in kept) > FIELDS_BYTES_MAX
        if too_long or (_is_private(self.fields) and not self._rules.store_private):
            return tombstone, tombstone
        body = base64.b64encode(bytes(self._body)).decode()
        stored = {"v": VERSION, "status": self.status, "at": at, "fields": [list(pair) for pair in kept], "body": body}
        return (stored if len(compact(stored).encode()) <= RESULT_BYTES_MAX else tombstone), tombstone


def _is_private(fields: Fields) -> bool:
    controls = [value for name, value in fields if name.lower() == "cache-control"]
    return any(part.split("=")[0].strip().lower() == "no-store" for value in controls for part in value.split(","))


@dataclass(frozen=True)
class Reply:
    """A response of the middleware's own: a replay, or a refusal."""

    status: int
    fields: Fields
    body: bytes
    problem: Problem | None = None

    @classmethod
    def refusal(cls, problem: Problem, fields: Fields | None = None) -> Reply:
        return cls(problem.status, [*problem.headers, *(fields or [])], problem.body, problem)


def replay(result: Any, rules: Rules) -> Reply:
    """The stored response, filtered as if the handler had sent it now; a refusal if it was not stored."""
    status = _member(result, "status", int)
    fields = [pair for pair in _member(result, "fields", list) or [] if _fields.is_field(pair)]
    kept = rules.stored_fields.select([(name, value) for name, value in fields])
    body = _decoded(_member(result, "body", str))
    if status is None or not 200 <= status <= 599 or _member(result, "v", int) != VERSION:
        return Reply.refusal(_not_stored(None, []))
    if body is None:
        return Reply.refusal(_not_stored(status, [pair for pair in kept if pair[0] in _TOMBSTONE]))
    age = max(0, int(time.time()) - (_member(result, "at", int) or 0))
    earlier = _fields.first(kept, "age")
    age += int(earlier) if earlier is not None and earlier.isascii() and earlier.isdigit() else 0
    kept = [(name.title(), value) for name, value in _fields.without(kept, "age")]
    body = b"" if status in _fields.WITHOUT_BODY else body
    own = [("Idempotent-Replayed", "true"), ("Age", str(age))]
    length = [] if status in _fields.WITHOUT_LENGTH else [("Content-Length", str(len(body)))]
    return Reply(status, [*kept, *length, *own], body)


def _member(result: Any, name: str, kind: type) -> Any:
    value = result.get(name) if isinstance(result, dict) else None
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _decoded(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _not_stored(status: int | None, fields: Fields) -> Problem:
    detail = "The first request with this key is done, but its response was not stored. `response_status` is its status."
    members = {"state": "succeeded", **({} if status is None else {"response_status": status})}
    return Problem("response_not_stored", detail, members, tuple((name.title(), value) for name, value in fields))
