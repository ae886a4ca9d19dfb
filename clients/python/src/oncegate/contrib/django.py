"""Django middleware: a function in your settings' module path that returns `once_middleware(get_response, client, rules)`.

    # shop/middleware.py, named in MIDDLEWARE as "shop.middleware.once", after the middleware that authenticates
    def once(get_response):
        return once_middleware(get_response, client, Rules(principal=lambda request: str(request.user.pk)))

It stands outside of ATOMIC_REQUESTS, so a success is reported after the commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..client import Client
from ._replay import BODY_BYTES_MAX, Request, Response, Rules, answer_to, response_of_error, stored, too_large

__all__ = ["Rules", "once_middleware"]


def once_middleware(get_response: Callable[[Any], Any], client: Client, rules: Rules) -> Callable[[Any], Any]:
    """Runs requests with an `Idempotency-Key` once, and replays the response to retries. `rules.principal` gets the HttpRequest."""
    from django.core.exceptions import RequestDataTooBig
    from django.http import HttpResponse

    if not isinstance(client, Client):
        raise TypeError(f"client is a Client, got {type(client).__name__}")

    def respond(response: Response) -> Any:
        answer = HttpResponse(response.body, status=response.status)
        del answer["Content-Type"]
        for name, value in response.headers:
            answer[name] = value
        return answer

    def middleware(request: Any) -> Any:
        key = request.headers.get("Idempotency-Key")
        if not rules.applies(request.method, key):
            return get_response(request)
        try:
            body = request.body
        except RequestDataTooBig:
            return respond(too_large())
        if len(body) > BODY_BYTES_MAX:
            return respond(too_large())
        headers = {"content-type": request.headers.get("Content-Type", "")}
        query = request.META.get("QUERY_STRING", "")
        call = rules.call(Request(request.method, request.path, query, headers, body), key, rules.principal(request))
        if isinstance(call, Response):
            return respond(call)
        own: list[Any] = []
        captured: list[Response] = []

        def work(_: Any) -> Any:
            answer = get_response(request)
            own.append(answer)
            content = b"".join(answer.streaming_content) if answer.streaming else answer.content
            if answer.streaming:
                answer.streaming_content = iter([content])
            captured.append(Response(answer.status_code, list(answer.items()), content))
            return stored(captured[0])

        try:
            answer = client.once(rules.operation, call[0], work, **call[1])
        except Exception as error:
            response = response_of_error(error, captured[0] if captured else None)
            if response is None:
                raise
        else:
            response = answer_to(answer, captured[0] if captured else None)
        # The service's own response object has cookies and callbacks.
        return own[0] if captured and response is captured[0] else respond(response)

    return middleware
