"""A request as the middleware sees it, and its fingerprint: what must be the same on a repeat with the same key."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..contents import JsonText, canonical_fingerprint
from ..errors import NotCanonical

PARTS = ("method", "path", "query", "content-type", "if-match", "body")
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]\Z")
_METHOD_OVERRIDES = ("x-http-method-override", "x-http-method", "x-method-override")


@dataclass(frozen=True)
class Incoming:
    """The head of a request."""

    method: str
    #: The path of the request line, with the mount point.
    path: str
    #: None if there is none.
    query: str | None
    #: Names in lower case, values in Latin-1, in order.
    fields: Sequence[tuple[str, str]]
    #: True: the server has joined the lines of one field by commas.
    joined: bool

    def lines(self, name: str) -> list[str]:
        return [value for each, value in self.fields if each == name]

    @property
    def is_conversation(self) -> bool:
        """True if its response cannot be recorded: an offer of WebSocket, or a call of gRPC."""
        offers = [part.strip().lower() for line in self.lines("upgrade") for part in line.split(",")]
        return "websocket" in offers or any(value.lower().startswith("application/grpc") for value in self.lines("content-type")[:1])

    def method_overrides(self) -> set[str]:
        """The names of the fields that change the method for frameworks that read them."""
        return {name for name, _ in self.fields if name.replace("_", "-") in _METHOD_OVERRIDES}

    def line(self, name: str) -> str | None:
        """The value of a field that came once."""
        lines = self.lines(name)
        return lines[0] if len(lines) == 1 else None


def wait_preferred(request: Incoming) -> int | None:
    """The seconds of `Prefer: wait=…` (RFC 7240); the first one counts, and one that cannot be read is none."""
    for preference in ",".join(request.lines("prefer")).split(","):
        name, found, value = preference.split(";")[0].partition("=")
        if found and name.strip().lower() == "wait":
            digits = value.strip().strip('"')
            return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else None
    return None


def fingerprint(request: Incoming, body: bytes, parts: Sequence[str]) -> dict[str, str | None]:
    """The members of the fingerprint, the same as those of the gateway's proxy without the host."""
    form = _form_digest(request, body)
    values = {
        "method": request.method,
        "path": _normal(request.path),
        "query": None if request.query is None else _normal(request.query),
        "content-type": _field(request, "content-type", str.lower) if form is None else "multipart/form-data",
        "if-match": _field(request, "if-match"),
        "body": form or hashlib.sha256(body).hexdigest(),
        "body:json": form or _json_digest(body),
    }
    chosen = {name.removesuffix(":json"): values[name] for name in parts}
    if "method" in parts:
        chosen |= {name: _field(request, name) for name in request.method_overrides()}
    return chosen


def _normal(target: str) -> str:
    """A path or query with the escapes of unreserved characters decoded, and the digits of others in capitals (RFC 3986, 6.2.2)."""

    def escape(match: re.Match[str]) -> str:
        character = chr(int(match[1], 16))
        return character if _UNRESERVED.match(character) else match[0].upper()

    return _ESCAPE.sub(escape, target)


def _field(request: Incoming, name: str, change: Callable[[str], str] = str) -> str | None:
    """The digest of a field's lines, in order: they may be longer than a fingerprint."""
    # Only A to Z have small letters: the bytes beyond ASCII are no characters.
    lines = [re.sub("[A-Z]+", lambda match: change(match[0]), line).encode("latin-1") for line in request.lines(name)]
    if not lines:
        return None
    return hashlib.sha256(b"".join(len(line).to_bytes(8, "big") + line for line in lines)).hexdigest()


def _json_digest(body: bytes) -> str:
    """The digest of the value; that of the bytes if it is not JSON, or JSON that readers understand differently."""
    try:
        body = canonical_fingerprint(JsonText(body.decode())).encode()
    except (NotCanonical, UnicodeDecodeError, RecursionError):
        pass
    return hashlib.sha256(body).hexdigest()


def _form_digest(request: Incoming, body: bytes) -> str | None:
    """The digest of a form's parts without its boundary, which clients choose afresh for each try.

    None if the body is no form, or one that readers could understand differently.
    """
    boundary = _boundary(request.line("content-type") or "")
    if boundary is None or not body.startswith(b"--" + boundary):
        return None
    delimiter, at = b"\r\n--" + boundary, len(boundary) + 2
    digest = hashlib.sha256()
    while True:
        if body.startswith(b"--", at):
            return digest.hexdigest() if body[at + 2 :] in (b"", b"\r\n") else None
        # No line end is that of two delimiters: some readers see an empty part between them.
        end = body.find(delimiter, at)
        if not body.startswith(b"\r\n", at) or end <= at:
            return None
        digest.update((end - at - 2).to_bytes(8, "big") + body[at + 2 : end])
        at = end + len(delimiter)


def _boundary(content_type: str) -> bytes | None:
    name, *parameters = content_type.split(";")
    if name.strip().lower() != "multipart/form-data":
        return None
    pairs = [(key.strip().lower(), value.strip().strip('"')) for key, found, value in (each.partition("=") for each in parameters) if found]
    # `boundary*` and `boundary*0` (RFC 2231) are boundaries to some readers.
    found = [(key, value) for key, value in pairs if key.startswith("boundary")]
    if len(found) != 1 or found[0][0] != "boundary":
        return None
    value = found[0][1]
    # At most 70 characters (RFC 2046, 5.1.1). Some readers end the type at a comma.
    return value.encode("latin-1") if 1 <= len(value) <= 70 and "," not in value else None
