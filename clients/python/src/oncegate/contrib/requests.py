"""requests: `session.mount("https://api.example.com/", IdempotencyAdapter())` gives each operation a key, and repeats it safely."""

from __future__ import annotations

import time
from typing import Any

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from requests.exceptions import ConnectionError as RequestsConnectionError
from requests.exceptions import Timeout
from requests.structures import CaseInsensitiveDict

from .. import options, sending
from ..sending import SendingRules


class IdempotencyAdapter(HTTPAdapter):
    """Sends each unsafe request with a fresh `Idempotency-Key`, unless it has one, and keeps key and bytes over its tries.

    A try is repeated after an error of the network, after 408, 425, 429, 502, 503 and 504, and after 409 in progress. `Retry-After` is
    obeyed. An unknown outcome is never repeated. `within` limits all tries.
    """

    def __init__(self, *arguments: Any, within: options.Duration = sending.WITHIN, body_bytes: int = 1024 * 1024, **more: Any):
        self._rules = SendingRules.of(within, body_bytes)
        super().__init__(*arguments, **more)

    def send(self, request: PreparedRequest, *arguments: Any, **more: Any) -> Response:
        if (request.method or "GET").upper() in sending.SAFE_METHODS:
            return super().send(request, *arguments, **more)
        self._keep_body(request)
        request.headers = CaseInsensitiveDict(request.headers)
        request.headers.setdefault(sending.KEY, sending.fresh_key())
        operation = self._rules.operation()
        while True:
            try:
                response = super().send(request, *arguments, **more)
            except (RequestsConnectionError, Timeout):
                if (pause := operation.after_error()) is None:
                    raise
            else:
                body = response.content if sending.asks_why(response.status_code, response.headers) else None
                if (pause := operation.after(response.status_code, response.headers, body)) is None:
                    return response
                response.close()
            time.sleep(pause)

    def _keep_body(self, request: PreparedRequest) -> None:
        """Reads a body that could be sent only once."""
        body: Any = request.body
        if body is None or isinstance(body, (bytes, str)):
            return
        pieces, size = [], 0
        for piece in iter(lambda: body.read(65536), b"") if hasattr(body, "read") else body:
            pieces.append(piece.encode() if isinstance(piece, str) else piece)
            size += len(piece)
            if size > self._rules.body_bytes:
                raise self._rules.too_long()
        request.body = b"".join(pieces)
        request.headers.pop("Transfer-Encoding", None)
        request.headers["Content-Length"] = str(size)


__all__ = ["IdempotencyAdapter"]
