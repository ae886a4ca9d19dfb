"""Flask: `install(app, client, Rules(operation=…, principal=…))`, and `install_errors(app)` for `once` in handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Flask, Request, Response

from .._grant import saw
from ..client import Client
from ..errors import OncegateError
from ..middleware import Problem, Rules, shared_keys
from ..middleware.problems import problem_of_error
from . import wsgi


class OnceMiddleware(wsgi.OnceMiddleware):
    """As `oncegate.contrib.wsgi.OnceMiddleware`; the functions of the rules get the `Request`, and `render` returns a `Response`."""

    def __init__(self, flask: Flask, client: Client, rules: Rules):
        super().__init__(flask.wsgi_app, client, rules)
        self._flask = flask

    def request(self, environ: wsgi.Environ) -> Request:
        return self._flask.request_class(environ)


def install(app: Flask, client: Client, rules: Rules) -> None:
    """Protects the application. Errors that its own handlers answer are seen: one of `rules.nothing_happened` releases the key."""
    if not isinstance(app, Flask):
        raise TypeError(f"app is the application, got {type(app).__name__}")
    if "oncegate" in app.extensions:
        raise ValueError("the application has this middleware already; install it once, with one Rules")
    middleware = OnceMiddleware(app, client, rules)
    app.extensions["oncegate"] = middleware
    app.wsgi_app = middleware  # type: ignore[method-assign]
    handle = app.handle_user_exception

    def noting(error: Exception) -> Any:
        saw(error)
        return handle(error)

    app.handle_user_exception = noting  # type: ignore[method-assign, assignment]


def install_errors(app: Flask, render: Callable[[Problem], Any] | None = None) -> None:
    """Answers the client's errors in handlers with problem documents: 409 for duplicates, 503 where no gateway answered."""

    @app.errorhandler(OncegateError)
    def answer(error: OncegateError) -> Any:
        problem = problem_of_error(error)
        if problem is None:
            raise error
        if render is not None:
            return render(problem)
        return Response(problem.body, problem.status, problem.headers)


__all__ = ["OnceMiddleware", "Problem", "Rules", "install", "install_errors", "shared_keys"]
