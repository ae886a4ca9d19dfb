"""`consume_once`: derive the contents, run the handler once, report, and decide."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .. import _results, options
from ..aio import AsyncClient
from ..client import Client
from ..errors import NothingHappened, NotSettled
from ..events import logger
from ..values import Answer
from ._decide import Ack, ContentsNotDerived, DeadLetter, Decision, Park, decide

M = TypeVar("M")


@dataclass(frozen=True)
class Recipe(Generic[M]):
    """One operation on messages.

    `contents` derives what makes two messages the same operation: an order number, never the id of the delivery or of the message.
    `handle` gets the message and the grant. `keep_report` keeps a report (an outbox), if no gateway accepts it; without it the message is
    redelivered. A client for consumers has `settle_within=None`, or long enough for the longest outage that a consumer waits for.
    """

    client: Client | AsyncClient
    operation: str
    contents: Callable[[M], Any]
    handle: Callable[[M, Any], Any]
    fingerprint: Callable[[M], Any] | None = None
    lease: options.Duration | None = None
    retention: options.Duration | None = None
    #: Exceptions of work that had no effect: the message is redelivered. Their subclasses count.
    nothing_happened: tuple[type[BaseException], ...] = ()
    #: Runs of a message that end with `NothingHappened` before it is dead-lettered.
    max_failures: int = 3
    #: Seconds, where the answer says nothing.
    redeliver_after: float = 5.0
    keep_report: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        options.operation(self.operation)
        options.duration("lease", self.lease)
        options.duration("retention", self.retention, forever=True)
        object.__setattr__(self, "nothing_happened", options.exceptions("nothing_happened", self.nothing_happened))
        _results.check_type(_results.return_type(self.handle))
        options.seconds("redeliver_after", self.redeliver_after)
        if not callable(self.contents) or not callable(self.handle):
            raise TypeError("contents and handle are functions: contents(message), handle(message, grant)")
        if isinstance(self.client, Client) == inspect.iscoroutinefunction(self.handle):
            other = "AsyncClient" if isinstance(self.client, Client) else "Client"
            if other == "AsyncClient":
                raise TypeError("handle is a coroutine function, which only AsyncClient runs")
        if isinstance(self.max_failures, bool) or not isinstance(self.max_failures, int) or self.max_failures < 1:
            raise ValueError(f"max_failures is a whole number from 1, got {self.max_failures!r}")

    def _arguments(self, message: M) -> tuple[Any, dict[str, Any]]:
        try:
            contents = self.contents(message)
            fingerprint = None if self.fingerprint is None else self.fingerprint(message)
        except Exception as error:
            raise ContentsNotDerived(f"the contents could not be derived: {error!r}") from error
        return contents, {"fingerprint": fingerprint, "lease": self.lease, "retention": self.retention, **self._of_work()}

    def _of_work(self) -> dict[str, Any]:
        return {"nothing_happened": self.nothing_happened, "result": _results.return_type(self.handle)}

    def _decide(self, end: Answer[Any] | BaseException, failures: int) -> Decision:
        kept = False
        if isinstance(end, NotSettled) and self.keep_report is not None:
            try:
                self.keep_report(end.report)
                kept = True
            except Exception:
                logger.exception("The report of %s could not be kept; the message is redelivered", self.operation)
        if isinstance(end, (*self.nothing_happened, *self.client._core.nothing_happened)):
            end = NothingHappened(repr(end))
        decision = decide(end, failures=failures, max_failures=self.max_failures, redeliver_after=self.redeliver_after, report_is_kept=kept)
        if not isinstance(decision, Ack):
            error = end if isinstance(end, BaseException) else None
            level = 40 if isinstance(decision, (Park, DeadLetter)) else 20
            logger.log(level, "A message of %s: %s", self.operation, decision, exc_info=error if level == 40 else None)
        return decision


def consume_once(recipe: Recipe[M], message: M, failures: int = 0) -> Decision:
    """Handles the message once, and returns what to do with it. Only interruptions such as KeyboardInterrupt are raised."""
    client = recipe.client
    if not isinstance(client, Client):
        raise TypeError("the recipe has an AsyncClient; call consume_once_async")
    end: Answer[Any] | BaseException
    try:
        contents, terms = recipe._arguments(message)
        end = client.once(recipe.operation, contents, lambda grant: recipe.handle(message, grant), **terms)
    except Exception as error:
        end = error
    return recipe._decide(end, failures)


async def consume_once_async(recipe: Recipe[M], message: M, failures: int = 0) -> Decision:
    """As `consume_once`, for a recipe with an `AsyncClient`."""
    client = recipe.client
    if not isinstance(client, AsyncClient):
        raise TypeError("the recipe has a Client; call consume_once")
    end: Answer[Any] | BaseException
    try:
        contents, terms = recipe._arguments(message)
        end = await client.once(recipe.operation, contents, lambda grant: recipe.handle(message, grant), **terms)
    except Exception as error:
        end = error
    return recipe._decide(end, failures)
