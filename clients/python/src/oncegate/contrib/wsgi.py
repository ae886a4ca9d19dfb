"""WSGI middleware for Flask and others: `app.wsgi_app = OnceMiddleware(app.wsgi_app, client, Rules(principal=…))`."""

from __future__ import annotations

import io
from http.client import responses
from typing import Any

from ..client import Client
from ._replay import BODY_BYTES_MAX, Request, Response, Rules, answer_to, response_of_error, stored, too_large

__all__ = ["OnceMiddleware", "Rules"]


class OnceMiddleware:
    """Runs requests with an `Idempotency-Key` once, and replays the response to retries. `rules.principal` gets the WSGI environ."""

    def __init__(self, app: Any, client: Client, rules: Rules):
        if not isinstance(client, Client):
            raise TypeError(f"client is a Client, got {type(client).__name__}")
        self._app, self._client, self._rules = app, client, rules

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        key = environ.get("HTTP_IDEMPOTENCY_KEY")
        if not self._rules.applies(environ["REQUEST_METHOD"], key):
            return self._app(environ, start_response)
        length = environ.get("CONTENT_LENGTH") or "0"
        if not length.isdigit() or int(length) > BODY_BYTES_MAX:
            return _respond(start_response, too_large())
        body = environ["wsgi.input"].read(int(length))
        headers = {"content-type": environ.get("CONTENT_TYPE", "")}
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        request = Request(environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING", ""), headers, body)
        call = self._rules.call(request, key, self._rules.principal(environ))
        if isinstance(call, Response):
            return _respond(start_response, call)
        own: list[Response] = []

        def work(_: Any) -> Any:
            own.append(_captured(self._app, {**environ, "wsgi.input": io.BytesIO(body)}))
            return stored(own[0])

        try:
            answer = self._client.once(self._rules.operation, call[0], work, **call[1])
        except Exception as error:
            response = response_of_error(error, own[0] if own else None)
            if response is None:
                raise
        else:
            response = answer_to(answer, own[0] if own else None)
        return _respond(start_response, response)


def _captured(app: Any, environ: dict[str, Any]) -> Response:
    """Runs the application, and returns its whole response."""
    started: list[Any] = []
    pieces: list[bytes] = []

    def start(status: str, headers: list[tuple[str, str]], _: Any = None) -> Any:
        started[:] = [int(status.split(" ")[0]), headers]
        return pieces.append

    result = app(environ, start)
    try:
        pieces.extend(result)
    finally:
        close = getattr(result, "close", None)
        if close is not None:
            close()
    return Response(started[0], started[1], b"".join(pieces))


def _respond(start_response: Any, response: Response) -> list[bytes]:
    headers = list(response.headers)
    if not any(name.lower() == "content-length" for name, _ in headers):
        headers.append(("Content-Length", str(len(response.body))))
    start_response(f"{response.status} {responses.get(response.status, 'Unknown')}", headers)
    return [response.body]
