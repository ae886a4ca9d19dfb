"""Starlette: `install(app, client, Rules(operation=…, principal=…))`, and `install_errors(app)` for `once` in handlers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from .._grant import saw
from ..aio import AsyncClient
from ..client import Client
from ..errors import OncegateError
from ..middleware import Problem, Rules, shared_keys
from ..middleware.asyncio_run import drain
from ..middleware.problems import problem_of_error
from . import asgi


class OnceMiddleware(asgi.OnceMiddleware):
    """As `oncegate.contrib.asgi.OnceMiddleware`; the functions of the rules get the `Request`, and `render` returns a `Response`."""

    def __init__(self, app: ASGIApp, client: AsyncClient | Client, rules: Rules):
        super().__init__(app, client, rules)

    def request(self, scope: asgi.Scope, receive: asgi.Receive) -> Request:
        return Request(scope, receive)


def install(app: Starlette, client: AsyncClient | Client, rules: Rules) -> None:
    """Protects the application, inside of the middleware that is added afterwards, and outside of its routes.

    Errors that the application's own handlers answer are seen: one of `rules.nothing_happened` releases the key.
    """
    if not isinstance(app, Starlette):
        raise TypeError(f"app is the application, got {type(app).__name__}")
    if any(issubclass(each.cls, asgi.OnceMiddleware) for each in app.user_middleware if isinstance(each.cls, type)):
        raise ValueError("the application has this middleware already; install it once, with one Rules")
    app.add_middleware(OnceMiddleware, client=client, rules=rules)
    watch_errors(app)


def watch_errors(app: Starlette) -> None:
    """Lets the middleware see the errors that the handlers of an application answer; for an application that is mounted in another."""
    if not isinstance(app.exception_handlers, _Watched):
        handlers = _Watched()
        # The default handler is not in this dictionary, so its errors would not be seen.
        handlers[HTTPException] = ExceptionMiddleware(app).http_exception
        handlers.update(app.exception_handlers)
        app.exception_handlers = handlers


class _Watched(dict[Any, Any]):
    """Handlers of exceptions. Each notes the exception on the grant of its request."""

    def __setitem__(self, kind: Any, handler: Callable[..., Any]) -> None:
        super().__setitem__(kind, _noting(handler))

    def update(self, *others: Any, **more: Any) -> None:
        for name, handler in dict(*others, **more).items():
            self[name] = handler

    def setdefault(self, kind: Any, default: Any = None) -> Any:
        if kind not in self:
            self[kind] = default
        return self[kind]


def _noting(handler: Callable[..., Any]) -> Callable[..., Any]:
    if asgi.is_async(handler):

        @wraps(handler)
        async def noting_async(request: Any, error: Exception) -> Any:
            saw(error)
            return await handler(request, error)

        return noting_async

    @wraps(handler)
    def noting(request: Any, error: Exception) -> Any:
        saw(error)
        return handler(request, error)

    return noting


def install_errors(app: Starlette, render: Callable[[Problem], Response] | None = None) -> None:
    """Answers the client's errors in handlers with problem documents: 409 for duplicates, 503 where no gateway answered."""

    async def answer(request: Request, error: Exception) -> Response:
        assert isinstance(error, OncegateError)
        problem = problem_of_error(error)
        if problem is None:
            raise error
        if render is not None:
            return render(problem)
        return Response(problem.body, problem.status, dict(problem.headers))

    app.add_exception_handler(OncegateError, answer)


__all__ = ["OnceMiddleware", "Problem", "Rules", "drain", "install", "install_errors", "shared_keys", "watch_errors"]
