"""Flask: `install(app, client, Rules(operation=…, principal=…))`, and `install_errors(app)` for `once` in handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from flask import Flask, Request, Response, request

from .._grant import saw
from ..client import Client
from ..errors import OncegateError
from ..middleware import Problem, Rules, shared_keys
from ..middleware.problems import problem_of_error
from ..middleware.recorder import Reply
from . import wsgi


class OnceMiddleware(wsgi.OnceMiddleware):
    """As `oncegate.contrib.wsgi.OnceMiddleware`; the functions of the rules get the `Request`, and `render` returns a `Response`.

    They run in the context of the request, so `session`, `current_user` of Flask-Login and `request.endpoint` are there. Functions of
    `before_request` have not run yet. Those of `after_request` see refusals too.
    """

    def __init__(self, flask: Flask, client: Client, rules: Rules):
        self._flask = flask
        if isinstance(rules, Rules):
            principal = rules.principal if rules.principal is shared_keys else self._in_context(rules.principal)
            rules = replace(rules, principal=principal, when=rules.when and self._in_context(rules.when))
        super().__init__(flask.wsgi_app, client, rules)

    def __call__(self, environ: wsgi.Environ, start_response: wsgi.Start) -> Iterable[bytes]:
        try:
            return super().__call__(environ, start_response)
        except _Raised as raised:
            error = raised.error
        with self._flask.request_context(environ):
            try:
                answer = self._flask.handle_user_exception(error)
            except Exception as unhandled:
                answer = self._flask.handle_exception(unhandled)
            return self._finished(answer)(environ, start_response)

    def _in_context(self, function: Callable[[Request], Any]) -> Callable[[wsgi.Environ], Any]:
        def asked(environ: wsgi.Environ) -> Any:
            with self._flask.request_context(environ):
                try:
                    return function(request)
                except Exception as error:
                    raise _Raised(error) from error

        return asked

    def _reply(self, reply: Reply, environ: wsgi.Environ, start_response: wsgi.Start) -> Iterable[bytes]:
        if reply.problem is None:
            return super()._reply(reply, environ, start_response)
        render = self._engine.rules.render
        with self._flask.request_context(environ):
            answer = Response(reply.body, reply.status, reply.fields) if render is None else render(reply.problem)
            return self._finished(answer)(environ, start_response)

    def _finished(self, answer: Any) -> Response:
        return self._flask.finalize_request(answer, from_error_handler=True)


class _Raised(Exception):
    """An error of a function of the rules; the handlers of the application answer it."""

    def __init__(self, error: Exception):
        super().__init__(str(error))
        self.error = error


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
