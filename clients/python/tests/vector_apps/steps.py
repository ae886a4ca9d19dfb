"""Common part of the handlers of all frameworks: the runs, the rules of each `at`, and the steps of a request."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from oncegate import AsyncClient, Client
from oncegate.middleware import Rules

ATS = (
    *("plain", "required", "put-only", "json", "wait", "harmless", "parsed", "form", "behind", "zip", "down", "down-pass", "off"),
    *("observe", "short", "stop", "store"),
)
#: A port of loopback without a listener.
NOBODY = "http://127.0.0.1:9"


class StockError(Exception):
    """The service declares it harmless."""


def url(at: str) -> str:
    return NOBODY if at.startswith("down") else os.environ["ONCEGATE_URL"]


def async_client(at: str) -> AsyncClient:
    return AsyncClient([url(at)])


def client(at: str) -> Client:
    return Client([url(at)])


def rules(at: str, principal: Any) -> Rules:
    options: dict[str, Any] = {"lease": "3s", "body_bytes": 131072, "on_unavailable": "fail_closed"}
    more: dict[str, dict[str, Any]] = {
        "required": {"required": True},
        "put-only": {"methods": ["PUT"]},
        "json": {"fingerprint": ["method", "path", "query", "content-type", "if-match", "body:json"]},
        "wait": {"wait": "5s"},
        "harmless": {"nothing_happened": (StockError,)},
        "down": {"claim_within": "300ms"},
        "down-pass": {"claim_within": "300ms", "on_unavailable": "proceed"},
        "off": {"enabled": False},
        "observe": {"observe": True},
        "short": {"exchange_max": "1s"},
        "stop": {"stop_when_gone": True},
        "store": {
            **{"store": ["2xx", "403"], "on_5xx": "store", "store_private": True},
            **{"store_with": ["Set-Cookie"], "store_without": ["X-Secret"]},
        },
    }
    return Rules(operation=f"vectors.{at}", principal=principal, **{**options, **more.get(at, {})})


class Runs:
    """The runs of each case, in the order of their start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, list[dict[str, Any]]] = {}

    def start(self, case: str, accept_encoding: str | None) -> dict[str, Any]:
        with self._lock:
            runs = self._runs.setdefault(case, [])
            runs.append({"run": len(runs) + 1, "accept_encoding": accept_encoding})
            return runs[-1]

    def of(self, case: str) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._runs.get(case, []))


RUNS = Runs()


@dataclass
class Stream:
    """A response in pieces."""

    rows: list[bytes]
    every: float
    break_after: int | None


@dataclass
class Answer:
    """The response that the steps ask for."""

    status: int = 201
    fields: list[tuple[str, str]] = field(default_factory=lambda: [("Content-Type", "application/json")])
    body: bytes | None = b""
    #: The fields are given with the status, where the framework knows a difference.
    with_head: bool = False
    stream: Stream | None = None
    after: float | None = None
    #: The background task fails at its end.
    fails: bool = False


class Handler:
    """One run. A framework's handler does the waiting; `steps` yields what it has to do itself."""

    def __init__(self, headers: Any):
        self.steps: list[dict[str, Any]] = json.loads(headers.get("Vector-Do") or "[]")
        self.accept_encoding = headers.get("Accept-Encoding")
        self.run = RUNS.start(headers.get("Vector-Case") or "", self.accept_encoding)
        self.answer = Answer()
        self._extra: dict[str, Any] = {}
        self._responds = False

    def read(self, body: bytes) -> None:
        self.run |= {"length": len(body), "sha256": hashlib.sha256(body).hexdigest()}

    def wants(self, what: str) -> bool:
        return any(what in step for step in self.steps)

    def parsed(self, **extra: Any) -> None:
        """`value`, or `fields` and `files`, of the framework's parser."""
        self._extra |= extra

    def each(self) -> Iterator[tuple[str, Any]]:
        """Yields `sleep`, `poll` (milliseconds), `mark` (outcome) and `raise` (kind) for the framework; the rest is done here."""
        encode = False
        for step in self.steps:
            ((name, value),) = step.items()
            if name in ("sleep", "poll", "mark", "raise"):
                yield name, value
            elif name == "respond":
                self._respond(value)
            elif name == "stream":
                self._stream(value)
            elif name in ("after", "fails"):
                self.answer.after, self.answer.fails = value / 1000, name == "fails"
            elif name == "encode":
                encode = True
        if not self._responds:
            self.answer.body = json.dumps({**self.run, **self._extra}).encode()
        if encode and "gzip" in (self.accept_encoding or ""):
            self.answer.body = gzip.compress(self.answer.body or b"")
            self.answer.fields.append(("Content-Encoding", "gzip"))

    def _respond(self, given: dict[str, Any]) -> None:
        self._responds = True
        body = _text(given.get("body", ""))
        fields = [(name, _text(value)) for name, value in given.get("headers", [])]
        self.answer.status, self.answer.fields = given.get("status", 201), fields
        self.answer.body = None if body is None else body.encode()
        self.answer.with_head = given.get("style") == "head"

    def _stream(self, given: dict[str, Any]) -> None:
        self._responds = True
        row, pad = given.get("row", "row {}\n"), "." * given.get("pad", 0)
        rows = [(row.replace("{}", str(number)) + pad).encode() for number in range(given["rows"])]
        fields = [(name, _text(value)) for name, value in given.get("headers", [["Content-Type", "text/plain"]])]
        if given.get("length"):
            fields.append(("Content-Length", str(sum(map(len, rows)))))
        self.answer.status, self.answer.fields = given.get("status", 201), fields
        self.answer.stream = Stream(rows, given["every"] / 1000, given.get("break_after"))


def _text(given: Any) -> Any:
    """A text, or one that is repeated."""
    return given["repeat"][0] * given["repeat"][1] if isinstance(given, dict) else given


def error_of(kind: str) -> Exception:
    if kind == "stock":
        return StockError("out of stock")
    error = RuntimeError("another error")
    error.__cause__ = StockError("out of stock") if kind == "caused" else None
    return error
