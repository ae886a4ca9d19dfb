"""WSGI middleware for Pyramid, Bottle and others: `app = OnceMiddleware(app, client, Rules(operation=…, principal=…))`.

Flask has `contrib.flask.install`, whose rules get its own requests.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from http.client import responses
from typing import Any

from ..client import Client
from ..middleware import Problem, Rules, shared_keys
from ..middleware.blocking_run import BlockingRun, Pieces
from ..middleware.engine import DRAINED_BYTES_MAX, Engine, Refused
from ..middleware.fields import HIDDEN, Fields
from ..middleware.incoming import Incoming
from ..middleware.recorder import Reply

Environ = dict[str, Any]
Start = Callable[..., Any]
App = Callable[[Environ, Start], Iterable[bytes]]

#: The member of an environment that says that the request is protected already.
GRANT = "oncegate.grant"


class OnceMiddleware:
    """Runs requests with an `Idempotency-Key` once, and replays the response to repeats. `rules.principal` gets the WSGI environ."""

    def __init__(self, app: App, client: Client, rules: Rules):
        if not isinstance(client, Client):
            raise TypeError(f"client is a Client, got {type(client).__name__}")
        self.app = app
        self._client = client
        self._engine = Engine(client._core, rules)

    def request(self, environ: Environ) -> Any:
        """The request that the functions of the rules get."""
        return environ

    def refusal(self, problem: Problem, environ: Environ, start_response: Start) -> Iterable[bytes]:
        """Answers a refusal as the service wants it: `render` returns a WSGI application, as responses of frameworks are."""
        assert self._engine.rules.render is not None
        app: App = self._engine.rules.render(problem)
        return app(environ, start_response)

    def __call__(self, environ: Environ, start_response: Start) -> Iterable[bytes]:
        incoming, engine = incoming_of(environ), self._engine
        if GRANT in environ or not engine.wants(incoming, self.request(environ)):
            return self.app(environ, start_response)
        body: bytes | None = None
        try:
            key = engine.key(incoming)
            body = read_body(environ, engine)
            principal = engine.check_principal(engine.rules.principal(self.request(_with_body(environ, body))))
        except Refused as refused:
            if engine.rules.observe:
                engine.refused(refused)
                return self.app(_observed(environ, body, refused), start_response)
            drop(environ, refused)
            engine.refused(refused)
            return self._reply(Reply.refusal(refused.problem), environ, start_response)
        terms = engine.terms(incoming, body, key, principal)
        claimed = self._client._claimed(terms, engine.claim(engine.scope(terms), terms))
        if claimed is None:
            return self.app(_with_body(environ, body), start_response)
        if isinstance(claimed, Reply):
            return self._reply(claimed, environ, start_response)
        return self._run(BlockingRun(self._client, engine, claimed), _with_body(environ, body), start_response)

    def _run(self, run: BlockingRun, environ: Environ, start_response: Start) -> Iterable[bytes]:
        head = _Head(run, start_response)
        inner = {name: value for name, value in environ.items() if name not in _HIDDEN}
        inner[GRANT] = run.grant
        with run.failing():
            result = run.call(self.app, inner, head.start)
        return Pieces(run, result, head.send)

    def _reply(self, reply: Reply, environ: Environ, start_response: Start) -> Iterable[bytes]:
        if reply.problem is not None and self._engine.rules.render is not None:
            return self.refusal(reply.problem, environ, start_response)
        fields = list(reply.fields)
        if reply.problem is not None:
            fields.append(("Content-Length", str(len(reply.body))))
        start_response(status_line(reply.status), fields)
        return [reply.body]


#: A handler does not see them; the last one would pass the recorder by.
_HIDDEN = frozenset({*("HTTP_" + name.upper().replace("-", "_") for name in HIDDEN), "wsgi.file_wrapper"})


class _Head:
    """The head of a response. It is sent with the first piece, or at the end."""

    def __init__(self, run: BlockingRun, start_response: Start):
        self._run, self._start_response = run, start_response
        self._given: tuple[str, Fields, Any] | None = None
        self._write: Callable[[bytes], Any] | None = None

    def start(self, status: str, fields: Fields, exc_info: Any = None) -> Callable[[bytes], Any]:
        if exc_info is not None and self._write is not None:
            try:
                raise exc_info[1].with_traceback(exc_info[2])
            finally:
                exc_info = None
        self._given = (status, self._run.recorder.begin(int(status.split(" ")[0]), fields), exc_info)
        return self.write

    def write(self, piece: bytes) -> None:
        """The older way to send a body. The server sends it at once, so the end of a response that it fills waits here."""
        piece = self._run.recorder.add(piece)
        if self._run.recorder.is_filled:
            self._run.report()
        if self._run.grant.caller_gone.is_set() and not self._run.stops_when_gone:
            return
        try:
            self.send()
            assert self._write is not None
            self._write(piece)
        except Exception:
            # The handler continues: the repeat gets its response.
            if self._run.stops_when_gone:
                raise
            self._run.grant.caller_gone.set()

    def send(self) -> None:
        if self._given is not None and self._write is None:
            status, fields, exc_info = self._given
            self._write = self._start_response(status, fields, exc_info) if exc_info else self._start_response(status, fields)


def incoming_of(environ: Environ) -> Incoming:
    target = str(environ.get("RAW_URI") or environ.get("REQUEST_URI") or "").partition("?")[0]
    path = target if target.startswith("/") else f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}"
    fields = [(name[5:].lower().replace("_", "-"), str(value)) for name, value in environ.items() if name.startswith("HTTP_")]
    fields += [(name.lower().replace("_", "-"), environ[name]) for name in ("CONTENT_TYPE", "CONTENT_LENGTH") if environ.get(name)]
    return Incoming(environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING") or None, fields, joined=True)


def status_line(status: int) -> str:
    return f"{status} {responses.get(status, 'Unknown')}"


def read_body(environ: Environ, engine: Engine) -> bytes:
    """The whole body; a refusal if it is too large, ended early, or cannot be seen."""
    limit, stream, length = engine.rules.body_bytes, environ["wsgi.input"], environ.get("CONTENT_LENGTH") or ""
    is_chunked = not length and bool(environ.get("HTTP_TRANSFER_ENCODING"))
    if is_chunked and not environ.get("wsgi.input_terminated"):
        detail = "The server does not tell where a chunked body ends; send Content-Length with an Idempotency-Key."
        raise Refused(Problem("length_required", detail))
    declared = int(length) if length.isascii() and length.isdigit() else 0
    if declared > limit:
        raise _TooLarge(engine.too_large(), b"")
    if (is_chunked or declared) and _was_read(stream, declared):
        raise Refused(engine.not_seen("put the middleware outside of what reads wsgi.input"))
    try:
        body = _read(stream, limit + 1 if is_chunked else declared)
    except Exception as error:
        raise Refused(cut_off()) from error
    if len(body) > limit:
        raise _TooLarge(engine.too_large(), body)
    if len(body) < declared:
        raise Refused(cut_off())
    return body


def cut_off() -> Problem:
    # Most likely the sender has disconnected; a sender that still reads gets the reason.
    return Problem("invalid_request", "The body ended before it was whole, so the request was not run; send it again with the same key.")


def _was_read(stream: Any, declared: int) -> bool:
    """Reports whether another layer has read the body, where the server's stream tells."""
    reader = getattr(stream, "reader", None)
    if reader is not None and hasattr(reader, "length"):
        # Gunicorn: what is left of a declared length.
        return bool(reader.length < declared)
    if reader is not None and hasattr(reader, "parser"):
        # Gunicorn: the parser of chunks, until their end.
        return reader.parser is None
    try:
        return bool(stream.tell() > 0)
    except Exception:
        return False


def _read(stream: Any, size: int) -> bytes:
    body = bytearray()
    while len(body) < size:
        piece = stream.read(min(size - len(body), 65536))
        if not piece:
            break
        body += piece
    return bytes(body)


class _TooLarge(Refused):
    """A body that is too large, and what was read of it."""

    def __init__(self, problem: Problem, read: bytes):
        super().__init__(problem)
        self.read = read


class _Rest(io.RawIOBase):
    """A stream whose beginning was read."""

    def __init__(self, read: bytes, stream: Any):
        self._read, self._stream = io.BytesIO(read), stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._read.read(len(buffer)) or self._stream.read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


def drop(environ: Environ, refused: Refused) -> None:
    """Reads the rest of a body that is too large within bounds, so that its sender reads the answer, and does not break off."""
    if not isinstance(refused, _TooLarge):
        return
    declared = environ.get("CONTENT_LENGTH") or ""
    try:
        stream = environ["wsgi.input"]
        left = min(int(declared) if declared else DRAINED_BYTES_MAX, DRAINED_BYTES_MAX)
        while left > 0 and (piece := stream.read(min(left, 65536))):
            left -= len(piece)
    except Exception:
        pass


def _with_body(environ: Environ, body: bytes) -> Environ:
    """The environment with a body that was read, as if it had just come."""
    same = {**environ, "wsgi.input": io.BytesIO(body), "wsgi.input_terminated": True}
    if body or environ.get("CONTENT_LENGTH"):
        same["CONTENT_LENGTH"] = str(len(body))
    same.pop("HTTP_TRANSFER_ENCODING", None)
    return same


def _observed(environ: Environ, body: bytes | None, refused: Refused) -> Environ:
    """The environment of a request that passes although it would be refused, with its whole body."""
    if isinstance(refused, _TooLarge) and refused.read:
        return {**environ, "wsgi.input": io.BufferedReader(_Rest(refused.read, environ["wsgi.input"]))}
    return environ if body is None else _with_body(environ, body)


__all__ = ["OnceMiddleware", "Problem", "Rules", "shared_keys"]
