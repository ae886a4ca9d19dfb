"""ASGI middleware for FastAPI, Starlette and others: `app.add_middleware(OnceMiddleware, client=…, rules=Rules(principal=…))`."""

from __future__ import annotations

from typing import Any

from ..aio import AsyncClient
from ._replay import BODY_BYTES_MAX, Request, Response, Rules, answer_to, response_of_error, stored, too_large

__all__ = ["OnceMiddleware", "Rules"]


class OnceMiddleware:
    """Runs requests with an `Idempotency-Key` once, and replays the response to retries. `rules.principal` gets the ASGI scope."""

    def __init__(self, app: Any, client: AsyncClient, rules: Rules):
        if not isinstance(client, AsyncClient):
            raise TypeError(f"client is an AsyncClient, got {type(client).__name__}")
        self._app, self._client, self._rules = app, client, rules

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)  # type: ignore[no-any-return]
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        key = headers.get("idempotency-key")
        if not self._rules.applies(scope["method"], key):
            return await self._app(scope, receive, send)  # type: ignore[no-any-return]
        body = await _whole_body(receive)
        if body is None:
            return await _respond(send, too_large())
        query = scope.get("query_string", b"").decode("latin-1")
        request = Request(scope["method"], scope["path"], query, headers, body)
        call = self._rules.call(request, key, self._rules.principal(scope))
        if isinstance(call, Response):
            return await _respond(send, call)
        own: list[Response] = []

        async def work(_: Any) -> Any:
            own.append(await _captured(self._app, scope, body))
            return stored(own[0])

        try:
            answer = await self._client.once(self._rules.operation, call[0], work, **call[1])
        except Exception as error:
            response = response_of_error(error, own[0] if own else None)
            if response is None:
                raise
        else:
            response = answer_to(answer, own[0] if own else None)
        return await _respond(send, response)


async def _whole_body(receive: Any) -> bytes | None:
    """The body; None if it is too large."""
    body = b""
    while True:
        message = await receive()
        piece: bytes = message.get("body", b"")
        body += piece
        if len(body) > BODY_BYTES_MAX:
            return None
        if not message.get("more_body"):
            return body


async def _captured(app: Any, scope: Any, body: bytes) -> Response:
    """Runs the application, and returns its whole response."""
    start: dict[str, Any] = {}
    pieces: list[bytes] = []
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        elif message["type"] == "http.response.body":
            pieces.append(message.get("body", b""))

    await app(scope, receive, send)
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start.get("headers", [])]
    return Response(start["status"], headers, b"".join(pieces))


async def _respond(send: Any, response: Response) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    if not any(name == b"content-length" for name, _ in headers):
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
