"""A base for Celery tasks that run once for their contents: `@app.task(base=OnceTask, …)`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from celery import Task

from ..client import Client
from ..consumers import Ack, DeadLetter, Park, Recipe, Redeliver, consume_once
from ..errors import OncegateError
from ..options import Duration

_FAILURES = "oncegate_failures"
#: None would be the limit of the task.
_NO_LIMIT = 2**31


class ParkedTask(OncegateError):
    """The outcome of the task is unknown, or it cannot be done: look up the effect. The task fails with this; `why` is the reason.

    Its cause is the error of the task, if it raised one.
    """

    def __init__(self, why: str):
        super().__init__(f"the task is not repeated: {why}")
        self.why = why


class OnceTask(Task):  # type: ignore[misc]
    """Claims the operation, runs the task, reports. Set `client`, `operation` and `contents`, a function of the task's arguments.

        @app.task(base=OnceTask, client=client, operation="invoice.send", contents=lambda invoice_id: {"invoice_id": invoice_id})
        def send_invoice(invoice_id): ...

    `acks_late` is on. In progress elsewhere: retried later, outside of `max_retries`. A broker with a visibility timeout (Redis, SQS) has
    one longer than the lease. Work that had no effect raises `NothingHappened` instead of calling
    `retry`. Otherwise the task fails with `ParkedTask`. A duplicate of a success returns its stored result.
    """

    abstract = True
    acks_late = True
    reject_on_worker_lost = True
    client: Client | None = None
    operation: str | None = None
    contents: Callable[..., Any] | None = None
    lease: Duration | None = None
    #: Exceptions of work that had no effect: the task is tried again. Their subclasses count.
    nothing_happened: tuple[type[BaseException], ...] = ()
    max_failures = 3
    redeliver_after = 5.0
    keep_report: Callable[[str], None] | None = None

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Called by Celery when the task gets its application."""
        if getattr(cls, "autoretry_for", ()):
            raise TypeError(
                f"{cls.name} has autoretry_for, whose retry would leave the outcome unknown: "
                "name the exceptions of work that had no effect in nothing_happened"
            )
        super().on_bound(app)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.request.id is None:
            # Called as a function, not as a task.
            return super().__call__(*args, **kwargs)
        results: list[Any] = []

        @wraps(self.run)
        def handle(_: Any, __: Any) -> Any:
            results.append(self.run(*args, **kwargs))
            return results[0]

        recipe = self._recipe(lambda contents: contents(*args, **kwargs), handle)
        decision = consume_once(recipe, None, int((self.request.headers or {}).get(_FAILURES, 0)))
        if isinstance(decision, Ack):
            # A duplicate has the stored result, or raises `ResultNotStored`.
            return results[0] if results or decision.answer is None else decision.answer.value()
        if isinstance(decision, Redeliver):
            headers = {**(self.request.headers or {}), _FAILURES: decision.failures}
            raise self.retry(countdown=decision.after, max_retries=_NO_LIMIT, headers=headers)
        assert isinstance(decision, (Park, DeadLetter))
        raise ParkedTask(decision.why) from decision.error

    def _recipe(self, apply: Callable[[Callable[..., Any]], Any], handle: Callable[[Any, Any], Any]) -> Recipe[None]:
        # As an attribute of the class a function would be a method.
        contents = type(self).contents
        if self.client is None or self.operation is None or contents is None:
            raise TypeError(f"{self.name} has base=OnceTask and needs client=…, operation='…' and contents=lambda …: {{…}}")
        return Recipe(
            self.client,
            self.operation,
            lambda _: apply(contents),
            handle,
            lease=self.lease,
            nothing_happened=self.nothing_happened,
            max_failures=self.max_failures,
            redeliver_after=self.redeliver_after,
            keep_report=type(self).keep_report,
        )


__all__ = ["OnceTask", "ParkedTask"]
