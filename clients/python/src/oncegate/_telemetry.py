"""Spans and metrics of OpenTelemetry, where its API is installed. There is nothing to set, and no dependency.

Attributes never have keys, contents, attempts or texts of errors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from .values import Done, Duplicate, Mismatch

Attributes = dict[str, Any]
#: Adds attributes to the current span of this package.
Note = Callable[[Attributes], None]

try:
    from opentelemetry import metrics as _metrics
    from opentelemetry import propagate as _propagate
    from opentelemetry import trace as _trace
except ImportError:
    _trace = _metrics = _propagate = None  # type: ignore[assignment]


def traceparent() -> str | None:
    """The current trace as W3C writes it."""
    if _trace is None or not _trace.get_current_span().get_span_context().is_valid:
        return None
    carrier: dict[str, str] = {}
    _propagate.inject(carrier)
    return carrier.get("traceparent")


def _is_traced() -> bool:
    """Reports whether the application has set a provider. Without one a span costs more than a claim's own work, and says nothing."""
    return _trace is not None and not isinstance(_trace.get_tracer_provider(), _trace.ProxyTracerProvider)


@functools.cache
def _tracer() -> Any:
    return _trace.get_tracer("oncegate")


def _nothing(_: Attributes) -> None:
    pass


@contextmanager
def span(name: str, operation: str, *, internal: bool = False) -> Iterator[Note]:
    """A span around a call of the client, or around the work (`internal`)."""
    if not _is_traced():
        yield _nothing
        return
    kind = _trace.SpanKind.INTERNAL if internal else _trace.SpanKind.CLIENT
    # An exception is noted by its type alone: its text may have contents.
    with _tracer().start_as_current_span(
        name, kind=kind, attributes={"oncegate.operation": operation}, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield lambda attributes: _set(current, attributes)
        except BaseException as error:
            current.set_status(_trace.Status(_trace.StatusCode.ERROR, type(error).__name__))
            raise


class RunSpan:
    """A span around a run whose parts are called one by one."""

    def __init__(self, operation: str):
        attributes = {"oncegate.operation": operation}
        self._span = _tracer().start_span("oncegate run", attributes=attributes) if _is_traced() else None

    def use(self) -> AbstractContextManager[Any]:
        """Makes the span the current one."""
        if self._span is None:
            return nullcontext()
        return _trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def end(self, error: BaseException | None) -> None:
        if self._span is not None:
            if error is not None:
                self._span.set_status(_trace.Status(_trace.StatusCode.ERROR, type(error).__name__))
            self._span.end()


def _set(current: Any, attributes: Attributes) -> None:
    for name, value in attributes.items():
        if value is not None:
            current.set_attribute(f"oncegate.{name}", value)


def of_answer(answer: Any) -> Attributes:
    """The attributes of an answer to a claim or an outcome."""
    degraded = getattr(answer, "degraded", None)
    if isinstance(answer, Mismatch):
        return {"state": "mismatch"}
    if isinstance(answer, (Duplicate, Done)):
        return {"state": answer.state, "replayed": isinstance(answer, Duplicate) and answer.state == "succeeded", "degraded": degraded}
    return {"state": "granted", "replayed": False, "degraded": degraded} if hasattr(answer, "attempt") else {}


@functools.cache
def _counter(name: str, description: str) -> Any:
    return None if _metrics is None else _metrics.get_meter("oncegate").create_counter(name, description=description)


def count_request(operation: str, result: str) -> None:
    """Counts a request that a middleware has answered; the names of results are those of the gateway's proxy."""
    counter = _counter("oncegate.requests", "Requests that a middleware has answered")
    if counter is not None:
        counter.add(1, {"operation": operation, "result": result})


def count_event(name: str, operation: str) -> None:
    counter = _counter("oncegate.client.events", "Events of the client")
    if counter is not None:
        counter.add(1, {"name": name, "operation": operation})
