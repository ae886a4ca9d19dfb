"""The `Idempotency-Key` header for web frameworks: what a request is, what of its response is kept, and the answers to retries."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .. import options
from ..errors import NothingHappened, NotSettled, OncegateError, OutcomeRefused, Rejected
from ..values import Answer, Done, Duplicate

Headers = list[tuple[str, str]]

#: With these the service says that it did nothing: the key is free again.
RELEASED = frozenset({307, 308, 401, 407, 408, 421, 425, 429})
_NEVER_STORED = frozenset({"set-cookie", "www-authenticate", "connection", "keep-alive", "transfer-encoding", "content-length"})
BODY_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Response:
    status: int
    headers: Headers = field(default_factory=list)
    body: bytes = b""


class _Unfit(Exception):
    """A response that is not a result; it goes to this caller all the same."""

    response: Response


class _Released(_Unfit, NothingHappened):
    def __init__(self, response: Response):
        super().__init__(f"the service answered {response.status}")
        self.response = response


class _Unknown(_Unfit):
    def __init__(self, response: Response):
        super().__init__(f"the service answered {response.status}")
        self.response = response


@dataclass(frozen=True)
class Rules:
    """Options of the middleware.

    `principal` distinguishes callers, such as the user's id: two callers may use one key. It gets the request of the framework; a keyed
    request without one (None) is answered 400. `required`: requests of these methods without a key are answered 400.
    """

    principal: Callable[[Any], str | None]
    operation: str = "http.request"
    methods: tuple[str, ...] = ("POST", "PATCH")
    required: bool = False
    lease: options.Duration | None = None
    retention: options.Duration | None = None

    def __post_init__(self) -> None:
        options.operation(self.operation)
        options.duration("lease", self.lease)
        options.duration("retention", self.retention, forever=True)
        if not callable(self.principal):
            raise TypeError("principal is a function of the request, such as principal=lambda request: str(request.user.id)")
        if isinstance(self.methods, str) or {"GET", "HEAD", "OPTIONS", "TRACE"} & set(self.methods):
            raise ValueError(f"methods are unsafe ones, such as ('POST', 'PATCH'); got {self.methods!r}")

    def applies(self, method: str, key: str | None) -> bool:
        return method in self.methods and (key is not None or self.required)

    def call(self, request: Request, key: str | None, principal: str | None) -> tuple[Any, dict[str, Any]] | Response:
        """Contents and terms of the claim, or the refusal of a request that has none."""
        bare = (key or "").strip().strip('"')
        if not 1 <= len(bare) <= 255 or not all("!" <= char <= "~" for char in bare):
            return problem(400, "invalid_idempotency_key", "Send Idempotency-Key with 1 to 255 visible ASCII characters.")
        if not principal:
            return problem(400, "no_principal", "A request with an Idempotency-Key needs a caller that is known.")
        contents = {"key": bare, "principal": hashlib.sha256(principal.encode()).hexdigest()}
        mark = {
            "method": request.method,
            "path": request.path,
            "query": request.query,
            "content_type": request.headers.get("content-type", ""),
            "body": hashlib.sha256(request.body).hexdigest(),
        }
        return contents, {"fingerprint": mark, "lease": self.lease, "retention": self.retention}


def stored(response: Response) -> dict[str, Any]:
    """The response as the result of a success; raises for a response that is none."""
    if response.status in RELEASED:
        raise _Released(response)
    if response.status >= 500:
        raise _Unknown(response)
    headers = [[name, value] for name, value in response.headers if name.lower() not in _NEVER_STORED]
    return {"status": response.status, "headers": headers, "body": base64.b64encode(response.body).decode()}


def answer_to(answer: Answer, own: Response | None) -> Response:
    """The response for the answer of `once`: the service's own if it ran here."""
    if isinstance(answer, Done):
        assert own is not None
        return own
    if isinstance(answer, Duplicate):
        if answer.state == "succeeded":
            return _replayed(answer.result)
        if answer.state == "unknown":
            return problem(409, "unknown", "It is not known whether the first request was done; it is being checked.")
        wait = [("Retry-After", str(max(1, math.ceil(answer.retry_after))))]
        return problem(409, "in_progress", "The first request with this key is in progress; repeat it later.", wait)
    return problem(422, "key_reused", "This Idempotency-Key was used for another request; make a fresh key for each operation.")


def response_of_error(error: BaseException, own: Response | None) -> Response | None:
    """The response for an error of `once`; None: the error is the framework's to handle."""
    if isinstance(error, _Unfit):
        return error.response
    if isinstance(error, (NotSettled, OutcomeRefused)):
        # The work is done, and the events say what became of its report.
        return own
    if isinstance(error, Rejected) and error.status == 429:
        return problem(429, "quota_exceeded", "Too many requests; repeat later.", [("Retry-After", str(math.ceil(error.retry_after or 1)))])
    if isinstance(error, OncegateError) and not isinstance(error, NothingHappened):
        return problem(503, "unavailable", "The request was not started; repeat it with the same Idempotency-Key.", [("Retry-After", "1")])
    return None


def _replayed(result: Any) -> Response:
    if not isinstance(result, dict) or "status" not in result:
        return problem(409, "response_not_stored", "The first request was done, but its response was not stored.")
    headers = [(str(name), str(value)) for name, value in result["headers"]]
    return Response(int(result["status"]), [*headers, ("Idempotent-Replayed", "true")], base64.b64decode(result["body"]))


def problem(status: int, code: str, detail: str, headers: Headers | None = None) -> Response:
    body = {"type": f"urn:oncegate:problem:{code}", "title": code.replace("_", " ").capitalize(), "status": status}
    text = json.dumps({**body, "detail": detail, "code": code}).encode()
    return Response(status, [("Content-Type", "application/problem+json"), *(headers or [])], text)


def too_large() -> Response:
    return problem(413, "body_too_large", f"A request with an Idempotency-Key has a body of at most {BODY_BYTES_MAX} bytes.")
