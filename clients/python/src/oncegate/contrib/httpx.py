"""httpx: `httpx.Client(transport=IdempotencyTransport())` gives each operation a key, and repeats it safely."""

from __future__ import annotations

import asyncio
import time

import httpx

from .. import options, sending
from ..sending import SendingRules

#: The request was not sent, and a repeat would not be either.
_FINAL = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)


class IdempotencyTransport(httpx.BaseTransport):
    """Sends each unsafe request with a fresh `Idempotency-Key`, unless it has one, and keeps key and bytes over its tries.

    A try is repeated after an error of the network, after 408, 425, 429, 502, 503 and 504, and after 409 in progress. `Retry-After` is
    obeyed. An unknown outcome is never repeated. `within` limits all tries; `base` makes the calls.
    """

    def __init__(
        self, base: httpx.BaseTransport | None = None, *, within: options.Duration = sending.WITHIN, body_bytes: int = 1024 * 1024
    ):
        self._rules = SendingRules.of(within, body_bytes)
        self._base = base or httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.method in sending.SAFE_METHODS:
            return self._base.handle_request(request)
        _check_length(request, self._rules)
        _keep(request, request.read(), self._rules)
        operation = self._rules.operation()
        while True:
            try:
                response = self._base.handle_request(request)
            except httpx.TransportError as error:
                if isinstance(error, _FINAL) or (pause := operation.after_error()) is None:
                    raise
            else:
                body = None
                if sending.asks_why(response.status_code, response.headers):
                    raw = b"".join(response.stream)  # type: ignore[arg-type]
                    response.close()
                    response, body = _again(response, raw)
                if (pause := operation.after(response.status_code, response.headers, body)) is None:
                    return response
                response.close()
            time.sleep(pause)

    def close(self) -> None:
        self._base.close()


class AsyncIdempotencyTransport(httpx.AsyncBaseTransport):
    """As `IdempotencyTransport`, for `httpx.AsyncClient`."""

    def __init__(
        self, base: httpx.AsyncBaseTransport | None = None, *, within: options.Duration = sending.WITHIN, body_bytes: int = 1024 * 1024
    ):
        self._rules = SendingRules.of(within, body_bytes)
        self._base = base or httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method in sending.SAFE_METHODS:
            return await self._base.handle_async_request(request)
        _check_length(request, self._rules)
        _keep(request, await request.aread(), self._rules)
        operation = self._rules.operation()
        while True:
            try:
                response = await self._base.handle_async_request(request)
            except httpx.TransportError as error:
                if isinstance(error, _FINAL) or (pause := operation.after_error()) is None:
                    raise
            else:
                body = None
                if sending.asks_why(response.status_code, response.headers):
                    raw = b"".join([piece async for piece in response.stream])  # type: ignore[union-attr]
                    await response.aclose()
                    response, body = _again(response, raw)
                if (pause := operation.after(response.status_code, response.headers, body)) is None:
                    return response
                await response.aclose()
            await asyncio.sleep(pause)

    async def aclose(self) -> None:
        await self._base.aclose()


def _check_length(request: httpx.Request, rules: SendingRules) -> None:
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > rules.body_bytes and not isinstance(request.stream, httpx.ByteStream):
        raise rules.too_long()


def _keep(request: httpx.Request, body: bytes, rules: SendingRules) -> None:
    if len(body) > rules.body_bytes and "transfer-encoding" in request.headers:
        raise rules.too_long()
    if request.headers.pop("transfer-encoding", None) is not None:
        request.headers["Content-Length"] = str(len(body))
    request.headers.setdefault(sending.KEY, sending.fresh_key())


def _again(response: httpx.Response, raw: bytes) -> tuple[httpx.Response, bytes]:
    """The response with a body that can be read again, and that body."""
    same = httpx.Response(response.status_code, headers=response.headers, stream=httpx.ByteStream(raw), extensions=response.extensions)
    readable = httpx.Response(response.status_code, headers=response.headers, content=raw)
    return same, readable.content


__all__ = ["AsyncIdempotencyTransport", "IdempotencyTransport"]
