"""Django, with blocking views on WSGI and asynchronous ones on ASGI."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import django
from django.conf import settings
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
from django.middleware.gzip import GZipMiddleware
from django.urls import path, re_path
from django.utils.decorators import sync_and_async_middleware

from oncegate import current
from oncegate.contrib.django import once_middleware

from .steps import ATS, RUNS, Handler, StockError, client, error_of, rules

LACKS = ["trailers", "background"]
is_async = False


class Conflict(Exception):
    """The service's own HTTP error: Django has none for 409."""


class Response(HttpResponse):  # type: ignore[misc]
    """A response whose fields may repeat, which those of Django cannot."""

    def __init__(self, *arguments: Any, **more: Any):
        super().__init__(*arguments, **more)
        self.again: list[tuple[str, str]] = []

    def items(self) -> Any:
        return [*super().items(), *self.again]

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.again = [pair for pair in self.again if pair[0].lower() != name.lower()]


def begin(request: Any) -> Handler:
    handler = Handler(request.headers)
    if handler.wants("form"):
        handler.parsed(fields=request.POST.dict(), files={name: file.size for name, file in request.FILES.items()})
    else:
        handler.read(request.body)
        if handler.wants("parsed"):
            handler.parsed(value=json.loads(request.body))
    return handler


def view(request: Any) -> Any:
    handler = begin(request)
    try:
        for name, value in handler.each():
            if name == "sleep":
                time.sleep(value / 1000)
            elif name == "poll":
                time.sleep(value / 1000)
                handler.run["gone"] = False  # Django has no means to ask.
            else:
                take(name, value)
        return response_of(handler)
    except Exception:
        handler.run["ended"] = "raised"
        raise


async def async_view(request: Any) -> Any:
    handler = begin(request)
    try:
        for name, value in handler.each():
            if name == "sleep":
                await asyncio.sleep(value / 1000)
            elif name == "poll":
                await asyncio.sleep(value / 1000)
                handler.run["gone"] = False
            else:
                take(name, value)
        return response_of(handler)
    except BaseException:
        handler.run["ended"] = "raised"
        raise


def take(name: str, value: Any) -> None:
    if name == "mark":
        grant = current()
        assert grant is not None
        grant.mark(value)
    elif value == "http":
        raise Conflict("sold out")
    else:
        raise error_of(value)


def response_of(handler: Handler) -> Any:
    answer = handler.answer
    response: Any
    if answer.stream is not None:
        response = StreamingHttpResponse(async_rows(handler) if is_async else rows(handler), status=answer.status)
    else:
        handler.run["ended"] = "returned"
        response = Response(answer.body or b"", status=answer.status)
    if any(name.lower() == "content-type" for name, _ in answer.fields):
        del response["Content-Type"]
    for name, value in answer.fields:
        if name in response and hasattr(response, "again"):
            response.again.append((name, value))
        else:
            response[name] = value
    return response


def rows(handler: Handler) -> Iterator[bytes]:
    stream = handler.answer.stream
    assert stream is not None
    try:
        for number, row in enumerate(stream.rows):
            if number == stream.break_after:
                raise RuntimeError("broken off")
            yield row
            time.sleep(stream.every)
        handler.run["ended"] = "returned"
    except Exception:
        handler.run["ended"] = "raised"
        raise


async def async_rows(handler: Handler) -> AsyncIterator[bytes]:
    stream = handler.answer.stream
    assert stream is not None
    try:
        for number, row in enumerate(stream.rows):
            if number == stream.break_after:
                raise RuntimeError("broken off")
            yield row
            await asyncio.sleep(stream.every)
        handler.run["ended"] = "returned"
    except Exception:
        handler.run["ended"] = "raised"
        raise


def runs(request: Any) -> Any:
    return JsonResponse(RUNS.of(request.GET["case"]), safe=False)


def out_of_stock(request: Any, error: Exception) -> Any:
    """Handlers of the service for its errors."""
    if isinstance(error, StockError):
        return HttpResponse("out of stock", status=409, content_type="text/plain")
    return HttpResponse("sold out", status=409, content_type="text/plain") if isinstance(error, Conflict) else None


def behind(get_response: Any, protected: Any) -> Any:
    """A middleware that has parsed the form before the one of the keys."""

    def parsed(request: Any) -> Any:
        request.POST.dict()
        return protected(request)

    async def parsed_async(request: Any) -> Any:
        request.POST.dict()
        return await protected(request)

    return parsed_async if is_async else parsed


@sync_and_async_middleware  # type: ignore[untyped-decorator]
def once(get_response: Any) -> Any:
    """One middleware for each `at`; a service has one."""
    parts = {at: once_middleware(get_response, client(at), rules(at, lambda request: request.headers.get("Vector-User"))) for at in ATS}
    parts["behind"] = behind(get_response, parts["behind"])
    see = parts["plain"].process_exception  # type: ignore[attr-defined]
    parts["zip"] = GZipMiddleware(parts["zip"])

    def choose(request: Any) -> Any:
        return parts.get(request.path.split("/")[1], get_response)(request)

    async def choose_async(request: Any) -> Any:
        return await choose(request)

    chosen: Any = choose_async if is_async else choose
    chosen.process_exception = see
    return chosen


@sync_and_async_middleware  # type: ignore[untyped-decorator]
def errors(get_response: Any) -> Any:
    def pass_on(request: Any) -> Any:
        return get_response(request)

    async def pass_on_async(request: Any) -> Any:
        return await get_response(request)

    passing: Any = pass_on_async if is_async else pass_on
    passing.process_exception = out_of_stock
    return passing


urlpatterns: list[Any] = []


def configure(asynchronous: bool) -> None:
    global is_async
    is_async = asynchronous
    settings.configure(
        DEBUG=False,
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="of the vectors",
        ROOT_URLCONF=__name__,
        MIDDLEWARE=[f"{__name__}.errors", f"{__name__}.once"],
        DATA_UPLOAD_MAX_MEMORY_SIZE=1024 * 1024,
    )
    django.setup()
    urlpatterns[:] = [path("runs", runs), re_path(".*", async_view if asynchronous else view)]


def wsgi() -> Any:
    from django.core.wsgi import get_wsgi_application

    LACKS.append("gone")
    configure(False)
    return get_wsgi_application()


def asgi() -> Any:
    LACKS.append("late")
    # The first version that listens for the disconnect of a caller.
    if django.VERSION < (5, 0):
        LACKS.extend(["gone", "stops"])
    from django.core.asgi import get_asgi_application

    from oncegate.contrib.django import draining

    configure(True)
    return draining(get_asgi_application())
