"""Django: a function in a module of yours that returns `once_middleware(get_response, client, rules)`.

    # shop/middleware.py, named in MIDDLEWARE as "shop.middleware.once", after the middleware that authenticates
    @sync_and_async_middleware
    def once(get_response):
        return once_middleware(get_response, client, Rules(operation="shop.http", principal=lambda request: str(request.user.pk or "")))

It runs outside of ATOMIC_REQUESTS, so a success is reported after the commit.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse
from django.http.request import RawPostDataException, UnreadablePostError

from .._core import ClaimTerms
from .._grant import saw
from ..aio import AsyncClient
from ..client import Client
from ..errors import OncegateError
from ..middleware import Problem, Rules, shared_keys
from ..middleware.asyncio_run import drain
from ..middleware.blocking_run import BlockingRun, Pieces
from ..middleware.engine import Engine, Refused
from ..middleware.fields import HIDDEN, WITHOUT_BODY
from ..middleware.incoming import Incoming
from ..middleware.problems import problem_of_error
from ..middleware.recorder import Recorder, Reply
from . import asgi, wsgi
from ._django_async import AsyncRun, Content

Handler = Callable[[HttpRequest], Any]


def once_middleware(get_response: Handler, client: Client | AsyncClient, rules: Rules) -> Handler:
    """Runs requests with an `Idempotency-Key` once, and replays the response to repeats. `rules.principal` gets the HttpRequest."""
    if not isinstance(client, (Client, AsyncClient)):
        raise TypeError(f"client is a Client, got {type(client).__name__}")
    if iscoroutinefunction(get_response):
        return _asynchronous(get_response, client if isinstance(client, AsyncClient) else AsyncClient.of(client), rules)
    if isinstance(client, AsyncClient):
        raise TypeError("client is an AsyncClient, which only ASGI can use; pass a Client, which both can")
    return _blocking(get_response, client, rules)


def _blocking(get_response: Handler, client: Client, rules: Rules) -> Handler:
    gate = _Gate(client._core, rules)

    def middleware(request: HttpRequest) -> Any:
        prepared = gate.prepare(request)
        if prepared is None:
            return get_response(request)
        if isinstance(prepared, Reply):
            return gate.response(prepared)
        claimed = client._claimed(prepared, gate.engine.claim(gate.engine.scope(prepared), prepared))
        if claimed is None:
            return get_response(request)
        if isinstance(claimed, Reply):
            return gate.response(claimed)
        run = BlockingRun(client, gate.engine, claimed)
        with run.failing(), _Hidden(request, run.grant):
            response = run.call(get_response, request)
            begin(run.recorder, response)
            if not response.streaming:
                run.recorder.add(response.content)
                run.report()
        if response.streaming:
            response.streaming_content = Pieces(run, Content(response))
        return response

    middleware.process_exception = _see  # type: ignore[attr-defined]
    return middleware


def _asynchronous(get_response: Handler, client: AsyncClient, rules: Rules) -> Handler:
    gate = _Gate(client._core, rules)

    async def middleware(request: HttpRequest) -> Any:
        prepared = await gate.prepare_async(request)
        if prepared is None:
            return await get_response(request)
        if isinstance(prepared, Reply):
            return gate.response(prepared)
        scope = gate.engine.scope(prepared)
        claimed = await client._detached(scope, gate.engine.claim(scope, prepared))
        if claimed is None:
            return await get_response(request)
        if isinstance(claimed, Reply):
            return gate.response(claimed)
        return await _run(get_response, request, AsyncRun(client, gate.engine, claimed, begin))

    middleware.process_exception = _see  # type: ignore[attr-defined]
    return middleware


async def _run(get_response: Handler, request: HttpRequest, run: AsyncRun) -> Any:
    hidden = _Hidden(request, run.grant)
    hidden.__enter__()
    try:
        return await run.response(lambda: get_response(request))
    finally:
        hidden.__exit__()


def _see(request: HttpRequest, error: Exception) -> None:
    saw(error)


def begin(recorder: Recorder, response: Any) -> None:
    """Takes the head of a response, and leaves on it what is sent."""
    fields = [(str(name), str(value)) for name, value in response.items()]
    kept = {name.lower() for name, _ in recorder.begin(response.status_code, fields)}
    for name in [name for name, _ in fields if name.lower() not in kept]:
        del response[name]
    if response.status_code in WITHOUT_BODY and not response.streaming:
        response.content = b""
    degraded = recorder.degraded
    if degraded:
        response["Oncegate-Degraded"] = degraded


class _Gate:
    """What happens before the claim, which is the same for both kinds of views."""

    def __init__(self, core: Any, rules: Rules):
        self.engine = Engine(core, rules)

    def prepare(self, request: HttpRequest) -> ClaimTerms | Reply | None:
        """Returns the terms of the claim, a refusal, or None for a request that is not protected."""
        incoming = incoming_of(request)
        if hasattr(request, "oncegate") or not self.engine.wants(incoming, request):
            return None
        try:
            key, body = self._key_and_body(incoming, request)
            principal = self.engine.check_principal(self.engine.rules.principal(request))
        except Refused as refused:
            return self._refusal(request, refused)
        return self.engine.terms(incoming, body, key, principal)

    async def prepare_async(self, request: HttpRequest) -> ClaimTerms | Reply | None:
        """As `prepare`. Functions of the rules that are not asynchronous run where blocking views do: `request.user` reads the database."""
        incoming, rules = incoming_of(request), self.engine.rules
        wants = self.engine.wants if rules.when is None else sync_to_async(self.engine.wants)
        wanted = not hasattr(request, "oncegate") and wants(incoming, request)
        if not (await wanted if inspect.isawaitable(wanted) else wanted):
            return None
        try:
            key, body = self._key_and_body(incoming, request)
            direct = rules.principal is shared_keys or asgi.is_async(rules.principal)
            found = rules.principal(request) if direct else await sync_to_async(rules.principal)(request)
            principal = self.engine.check_principal(await found if inspect.isawaitable(found) else found)
        except Refused as refused:
            return self._refusal(request, refused)
        return self.engine.terms(incoming, body, key, principal)

    def _key_and_body(self, incoming: Incoming, request: HttpRequest) -> tuple[str, bytes]:
        return self.engine.key(incoming), self._body(request)

    def _refusal(self, request: HttpRequest, refused: Refused) -> Reply | None:
        self.engine.refused(refused)
        if self.engine.rules.observe:
            return None
        if hasattr(request, "environ"):
            wsgi.drop(request.environ, refused)
        return Reply.refusal(refused.problem)

    def _body(self, request: HttpRequest) -> bytes:
        advice = "name the middleware in MIDDLEWARE before those that read request.POST or request.read()"
        environ = getattr(request, "environ", None)
        if environ is not None and not hasattr(request, "_body"):
            if getattr(request, "_read_started", False):
                raise Refused(self.engine.not_seen(advice))
            whole = wsgi.read_body(environ, self.engine)
            _give(request, whole)
            return whole
        try:
            body: bytes = request.body
        except RequestDataTooBig as error:
            raise Refused(self.engine.too_large()) from error
        except RawPostDataException as error:
            raise Refused(self.engine.not_seen(advice)) from error
        except UnreadablePostError as error:
            raise Refused(wsgi.cut_off()) from error
        if len(body) > self.engine.rules.body_bytes:
            raise Refused(self.engine.too_large())
        declared = request.META.get("CONTENT_LENGTH") or ""
        if declared.isdigit() and len(body) < int(declared):
            raise Refused(wsgi.cut_off())
        return body

    def response(self, reply: Reply) -> Any:
        if reply.problem is not None and self.engine.rules.render is not None:
            return self.engine.rules.render(reply.problem)
        return _Answer(reply)


class _Answer(HttpResponse):  # type: ignore[misc]
    """A replay or refusal. Its fields may repeat, which those of Django's own responses cannot."""

    def __init__(self, reply: Reply):
        super().__init__(reply.body, status=reply.status)
        del self["Content-Type"]
        self._again: list[tuple[str, str]] = []
        for name, value in reply.fields:
            if name in self:
                self._again.append((name, value))
            else:
                self[name] = value

    def items(self) -> Any:
        return [*super().items(), *self._again]


def _give(request: Any, body: bytes) -> None:
    """Gives a body that was read, as if it had just come: to `body`, `POST`, `FILES` and `read`."""
    request._body = body
    request._stream = io.BytesIO(body)
    if body or request.META.get("CONTENT_LENGTH"):
        request.META["CONTENT_LENGTH"] = str(len(body))
    request.META.pop("HTTP_TRANSFER_ENCODING", None)
    request.__dict__.pop("headers", None)


class _Hidden:
    """The fields that a handler does not see, until its response is there: layers outside compress it for the caller."""

    def __init__(self, request: Any, grant: Any):
        self._request = request
        request.oncegate = grant

    def __enter__(self) -> None:
        names = ["HTTP_" + name.upper().replace("-", "_") for name in HIDDEN]
        self._fields = {name: self._request.META.pop(name) for name in names if name in self._request.META}
        self._request.__dict__.pop("headers", None)

    def __exit__(self, *_: object) -> None:
        self._request.META.update(self._fields)
        self._request.__dict__.pop("headers", None)


def incoming_of(request: Any) -> Incoming:
    scope = getattr(request, "scope", None)
    return wsgi.incoming_of(request.environ if hasattr(request, "environ") else request.META) if scope is None else asgi.incoming_of(scope)


def install_errors(get_response: Handler, render: Callable[[Problem], Any] | None = None) -> Handler:
    """A middleware that answers the client's errors in views with problem documents: 409 for duplicates, 503 without a gateway.

    Return it from a function named in MIDDLEWARE, as `once_middleware`.
    """

    def answer(request: HttpRequest, error: Exception) -> Any:
        problem = problem_of_error(error) if isinstance(error, OncegateError) else None
        if problem is None:
            return None
        return _Answer(Reply.refusal(problem)) if render is None else render(problem)

    if iscoroutinefunction(get_response):

        async def middleware_async(request: HttpRequest) -> Any:
            return await get_response(request)

        middleware_async.process_exception = answer  # type: ignore[attr-defined]
        return middleware_async

    def middleware(request: HttpRequest) -> Any:
        return get_response(request)

    middleware.process_exception = answer  # type: ignore[attr-defined]
    return middleware


def draining(application: asgi.App) -> asgi.App:
    """Wraps the ASGI application of Django, which has no lifespan: the shutdown of the server waits for views without callers."""

    async def app(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        if scope["type"] != "lifespan":
            return await application(scope, receive, send)
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await drain()
        await send({"type": "lifespan.shutdown.complete"})

    return app


__all__ = ["Problem", "Rules", "drain", "draining", "install_errors", "once_middleware", "shared_keys"]
