"""HTTP/1.1 without input or output: the bytes of a request, and a reader of responses. Used by both transports."""

from __future__ import annotations

import json
import socket
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from ._core import Reply, Request
from .errors import Cause

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 64 * 1024 * 1024
#: Idle connections kept for each gateway, and for how long: less than the gateway's own limit, 75 seconds by default.
IDLE_CONNECTIONS_MAX = 64
IDLE_SECONDS_MAX = 50.0


class ProtocolError(Exception):
    """The other side does not speak HTTP/1.1 as a gateway does."""


@dataclass(frozen=True)
class Server:
    """One gateway."""

    url: str
    tls: ssl.SSLContext | None
    host: str
    port: int
    authority: str
    path: str

    @classmethod
    def of(cls, url: str, context: ssl.SSLContext | None) -> Server:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        host = parts.hostname or ""
        port = parts.port or (443 if secure else 80)
        return cls(url, (context or ssl.create_default_context()) if secure else None, host, port, parts.netloc, parts.path)

    def encode(self, request: Request, headers: dict[str, str]) -> bytes:
        body = b"" if request.body is None else request.body.encode()
        lines = [f"{request.method} {self.path}{request.path} HTTP/1.1", f"Host: {self.authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if request.body is not None:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body

    def answer(self, request: Request, response: ResponseReader) -> Reply | Cause:
        """The answer of a gateway, or the cause if something else has answered."""
        try:
            body = json.loads(response.body)
        except (ValueError, RecursionError):
            body = None
        wanted = request.answers_with if response.status < 300 else "code"
        if isinstance(body, dict) and body.get(wanted) is not None:
            return Reply(response.status, body)
        kind = response.headers.get("content-type", "no content type").split(";")[0]
        return Cause(self.url, "not_a_gateway", f"answered {response.status}, {kind}; check the URL", response.status)

    def cause(self, error: BaseException) -> Cause:
        return Cause(self.url, _kind(error), str(error) or type(error).__name__)


def _kind(error: BaseException) -> str:
    if isinstance(error, TimeoutError) or type(error).__name__ == "TimeoutError":
        return "timeout"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ssl.SSLError):
        return "tls"
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return "dns"
    if isinstance(error, ProtocolError):
        return "not_a_gateway"
    return "connection"


class ResponseReader:
    """Reads one response from pieces of bytes: `feed` until it returns true."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self._bytes = bytearray()
        #: Bytes that are still to come; None before the head was read, -1 up to the end of the connection.
        self._left: int | None = None
        self._chunked = False

    @property
    def keeps_alive(self) -> bool:
        return self._left == 0 and not self._bytes and self.headers.get("connection", "").lower() != "close"

    def feed(self, data: bytes) -> bool:
        """Returns true once the response is whole. No bytes mean that the connection has ended."""
        self._bytes += data
        if self._left is None and not self._read_head():
            if len(self._bytes) > HEAD_BYTES_MAX:
                raise ProtocolError("the head of the answer is too long")
            if not data:
                raise ConnectionResetError("the connection was closed before the answer was whole")
            return False
        if len(self._bytes) > BODY_BYTES_MAX:
            raise ProtocolError("the answer is too long")
        if self._chunked:
            done = self._read_chunks()
        elif self._left == -1:
            done = not data
            self.body = bytes(self._bytes) if done else b""
        else:
            done = len(self._bytes) >= (self._left or 0)
            if done:
                self.body, self._bytes = bytes(self._bytes[: self._left]), self._bytes[self._left :]
                self._left = 0
        if not done and not data:
            raise ConnectionResetError("the connection was closed before the answer was whole")
        return done

    def _read_head(self) -> bool:
        end = self._bytes.find(b"\r\n\r\n")
        if end < 0:
            return False
        lines = bytes(self._bytes[:end]).decode("latin-1").split("\r\n")
        del self._bytes[: end + 4]
        version, _, rest = lines[0].partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise ProtocolError(f"not an HTTP answer: {lines[0][:60]!r}")
        self.status = int(rest[:3])
        if 100 <= self.status < 200:
            return self._read_head()
        self.headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = self.headers.get("content-length")
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        if self.status == 204 or (length is not None and length.isdigit()):
            self._left = 0 if self.status == 204 else int(length or 0)
        else:
            self._left = -1
        return True

    def _read_chunks(self) -> bool:
        """Chunks that are whole move to the body. Trailers do not occur with gateways, and are skipped."""
        while True:
            end = self._bytes.find(b"\r\n")
            if end < 0:
                return False
            try:
                size = int(bytes(self._bytes[:end]).split(b";")[0], 16)
            except ValueError as error:
                raise ProtocolError("a chunk of the answer has no size") from error
            if size == 0:
                last = self._bytes.find(b"\r\n\r\n", end)
                if last < 0:
                    return False
                del self._bytes[: last + 4]
                self._left = 0
                return True
            if len(self._bytes) < end + 4 + size:
                return False
            self.body += self._bytes[end + 2 : end + 2 + size]
            if len(self.body) > BODY_BYTES_MAX:
                raise ProtocolError("the answer is too long")
            del self._bytes[: end + 4 + size]
