"""The servers of a behaviour vector: they play its exchanges, and note what came that was not expected."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).resolve().parents[2] / "vectors"
COMMON: dict[str, Any] = json.loads((VECTORS / "behaviour" / "common.json").read_text())
PLACEHOLDER = re.compile(r"\$[a-z_0-9]+")
UNRESOLVABLE = "http://" + "a" * 64 + ".invalid"


def merged(named: Any, kind: str) -> dict[str, Any]:
    """A request or answer with what it takes from common.json."""
    if isinstance(named, str):
        named = {"use": named}
    if "use" not in named:
        return dict(named)
    base: dict[str, Any] = dict(COMMON[kind][named["use"]])
    for key, value in named.items():
        if key in ("body", "headers"):
            base[key] = {**base.get(key, {}), **value}
        elif key != "use":
            base[key] = value
    return base


class Script:
    """The exchanges of one case, over all its servers."""

    def __init__(self, case: dict[str, Any], urls: list[str]):
        self.exchanges = case["exchanges"]
        self.changed = threading.Condition()
        self.values: dict[str, str] = {}
        self.faults: list[str] = []
        self.read = 0
        self.answered = 0
        self.closing = False
        self.on_read: Callable[[int], None] = lambda _: None
        self._last_answer = time.monotonic()
        self._stack = contextlib.ExitStack()
        self.urls = [self._server(at, kind) for at, kind in enumerate(urls)]
        self.values |= {f"$url{at}": url for at, url in enumerate(self.urls)}

    def close(self) -> None:
        self.closing = True
        self._stack.close()

    def wait_answered(self, count: int, timeout: float = 20.0) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.answered >= count or bool(self.faults), timeout)

    def _server(self, at: int, kind: str) -> str:
        if kind == "unresolvable":
            return UNRESOLVABLE
        listener = self._stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        if kind != "refused":
            listener.listen()
            threading.Thread(target=self._accept, args=(listener, at, kind), daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    def _accept(self, listener: socket.socket, at: int, kind: str) -> None:
        kept: list[socket.socket] = []
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                if kind == "closing":
                    connection.close()
                elif kind == "silent":
                    kept.append(connection)
                else:
                    threading.Thread(target=self._serve, args=(connection, at), daemon=True).start()

    def _serve(self, connection: socket.socket, at: int) -> None:
        with connection, contextlib.suppress(OSError), connection.makefile("rb") as stream:
            while True:
                request = _read_request(stream)
                if request is None or self.closing or not self._answer(connection, at, request):
                    return

    def _answer(self, connection: socket.socket, at: int, request: dict[str, Any]) -> bool:
        """Returns true if the connection stays open."""
        with self.changed:
            number = self.read
            self.read += 1
            if number >= len(self.exchanges):
                return self._fault(f"one request too many: {request['method']} {request['path']} {request['body']}")
            exchange = self.exchanges[number]
            expected = merged(exchange["expect"], "requests")
            waited = (time.monotonic() - self._last_answer) * 1000
            if at != exchange.get("at", 0):
                return self._fault(f"exchange {number + 1} came to server {at}")
            if waited < exchange.get("after_ms", 0):
                return self._fault(f"exchange {number + 1} came after {waited:.0f} ms")
            wrong = self._differs(expected, request)
            if wrong:
                return self._fault(f"exchange {number + 1}: {wrong}")
        self.on_read(number + 1)
        answer = exchange["answer"]
        if answer in ("reset", "close", "silence"):
            if answer != "silence":
                self._answering()
            self._answered()
            if answer == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if answer == "silence":
                connection.settimeout(5)
                connection.recv(1)
            return False
        answer = merged(answer, "answers")
        time.sleep(answer.get("delay_ms", 0) / 1000)
        headers = {"connection": "keep-alive", **answer.get("headers", {})}
        if "text" in answer:
            body = answer["text"].encode()
        else:
            body = json.dumps(self.filled(answer["body"])).encode()
            headers["content-type"] = "application/problem+json" if answer["status"] >= 400 else "application/json"
        head = f"HTTP/1.1 {answer['status']} X\r\nContent-Length: {len(body)}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        whole = head.encode() + b"\r\n" + body
        cut = answer.get("cut_after_bytes")
        with self.changed:
            self._answering()
            connection.sendall(whole[:cut])
            self._answered()
        return cut is None and headers["connection"] != "close"

    def _answering(self) -> None:
        """An answer will be sent now: the client may have it before the server knows that."""
        self._last_answer = time.monotonic()

    def _answered(self) -> None:
        with self.changed:
            self.answered += 1
            self.changed.notify_all()

    def _fault(self, fault: str) -> bool:
        self.faults.append(fault)
        self.changed.notify_all()
        return False

    def _differs(self, expected: dict[str, Any], request: dict[str, Any]) -> str | None:
        if (request["method"], request["path"]) != (expected["method"], expected["path"]):
            return f"{request['method']} {request['path']}"
        for name, value in expected.get("headers", {}).items():
            if request["headers"].get(name) != value:
                return f"header {name}: {request['headers'].get(name)!r}"
        return self._unlike(expected.get("body"), request["body"], "body")

    def _unlike(self, expected: Any, actual: Any, path: str) -> str | None:
        """The first difference; binds placeholders."""
        if isinstance(expected, dict) and isinstance(actual, dict):
            actual = {name: value for name, value in actual.items() if value is not None or expected.get(name, 0) is None}
            if sorted(expected) != sorted(actual):
                return f"{path} has {sorted(actual)} instead of {sorted(expected)}"
            parts = [self._unlike(expected[name], actual[name], f"{path}.{name}") for name in expected]
            return next((part for part in parts if part), None)
        if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
            parts = [self._unlike(one, other, f"{path}[{at}]") for at, (one, other) in enumerate(zip(expected, actual, strict=True))]
            return next((part for part in parts if part), None)
        if expected == "$rest":
            return None if re.fullmatch(r"[1-9][0-9]*(ms|s)", str(actual)) else f"{path} is {actual!r}"
        if isinstance(expected, str) and PLACEHOLDER.fullmatch(expected) and expected not in self.values and isinstance(actual, str):
            if actual in self.values.values():
                return f"{path} is {actual!r} again"
            self.values[expected] = actual
            if expected == "$nonce":
                self.values["$attempt_hash"] = hashlib.sha256(
                    f"{COMMON['answers']['granted']['body']['timestamp']}-{actual}".encode()
                ).hexdigest()[:8]
        return None if self.filled(expected) == actual else f"{path} is {actual!r} instead of {self.filled(expected)!r}"

    def filled(self, value: Any) -> Any:
        """The value with its placeholders replaced."""
        if isinstance(value, dict):
            return {name: self.filled(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self.filled(each) for each in value]
        if isinstance(value, str):
            return PLACEHOLDER.sub(lambda match: self.values.get(match[0], match[0]), value)
        return value


def _read_request(stream: Any) -> dict[str, Any] | None:
    first = stream.readline().decode()
    if not first:
        return None
    method, path, _ = first.split(" ")
    headers = {}
    while line := stream.readline().decode().strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    length = int(headers.get("content-length", 0))
    body = json.loads(stream.read(length)) if length else None
    return {"method": method, "path": path, "headers": headers, "body": body}
