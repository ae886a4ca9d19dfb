"""The asyncio client: the same names, results and rules as `Client`."""

from __future__ import annotations

import asyncio
import inspect
import ssl
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from . import _batches, _claims, _core, _locks, _telemetry, _work, contents, options
from ._aio_transport import AsyncTransport
from ._batches import SettleItem
from ._core import Core, Flow, Scope
from ._grant import BaseGrant, set_current
from .client import ClaimItem, Client, Terms, WorkTerms, add_note, record
from .errors import LockNotAcquired, NotSettled, OncegateError, OutcomeRefused, Rejected, Unavailable
from .events import log_crash
from .values import Answer, Done, Duplicate, Event, LockRecord, Mismatch, Record, Settled

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")

#: Time for which a cancelled call continues to report where `settle_within` has no limit.
SETTLE_AFTER_CANCELLATION = 30.0


class AsyncClient:
    """As `Client`, for asyncio. The options are the same.

    A call that is cancelled before its answer finishes its request in the background, and gives a grant back. Work that is cancelled is
    reported as `unknown`. A report is finished before the cancellation continues.
    """

    def __init__(
        self,
        urls: list[str] | None = None,
        credential: str | None = None,
        *,
        timeout: options.Duration = 2.0,
        claim_within: options.Duration = 5.0,
        settle_within: options.Duration | None = 30.0,
        on_unavailable: Literal["fail_closed", "proceed"] = "fail_closed",
        nothing_happened: type[BaseException] | tuple[type[BaseException], ...] = (),
        enabled: bool = True,
        on_event: Callable[[Event], None] | None = None,
        traceparent: Callable[[], str | None] | None = None,
        tls: ssl.SSLContext | None = None,
    ):
        self._core = Core(
            urls, credential, timeout, claim_within, settle_within, on_unavailable, on_event, traceparent, nothing_happened, enabled
        )
        self._transport = AsyncTransport(self._core, tls)
        self._background: set[asyncio.Task[Any]] = set()

    @classmethod
    def of(cls, client: Client) -> AsyncClient:
        """Returns an asyncio client with the options of a blocking one."""
        made = cls.__new__(cls)
        made._core, made._transport, made._background = client._core, AsyncTransport(client._core, client._tls), set()
        return made

    async def once(
        self, operation: str, contents: Any, work: Callable[[AsyncGrant], Awaitable[T]], **terms: Unpack[WorkTerms]
    ) -> Answer[T]:
        """Runs `work` unless the operation is a duplicate, and reports the outcome. Duplicates get what `work` returns."""
        _work.check_work(work, "Client")
        _work.check_parameters(work)
        return await self._once(operation, contents, work, terms)

    async def _once(
        self, operation: str, contents: Any, work: Callable[[AsyncGrant], Any], terms: Any, plan: _work.Plan | None = None
    ) -> Answer[Any]:
        terms = dict(terms)
        plan = plan or _work.Plan.of(work, terms)
        answer = await self.claim(operation, contents, **terms)
        if not isinstance(answer, AsyncGrant):
            return plan.read(answer)  # type: ignore[no-any-return]
        answer._state.plan = plan
        async with answer as grant:
            with set_current(grant), _telemetry.span("oncegate run", operation, internal=True):
                result = work(grant)
                if inspect.isawaitable(result):
                    result = await result
                _work.check_result(result)
            return await grant.succeed(result)

    async def claim(self, operation: str, contents: Any, **terms: Unpack[Terms]) -> AsyncGrant | Duplicate[Any] | Mismatch:
        """Claims the operation. Use an `AsyncGrant` in an `async with` statement, which renews it."""
        given: dict[str, Any] = dict(terms)
        _work.check_transaction(given.pop("inside_transaction", "refuse"))
        checked = _core.claim_terms(self._core, operation, contents, **given)
        scope = Scope(self._core, operation, checked.global_id, self._core.clock())
        answer = await self._detached(scope, _claims.claim(self._core, scope, checked))
        return AsyncGrant(self, answer) if isinstance(answer, _claims.GrantState) else answer

    async def claim_batch(self, items: Sequence[ClaimItem]) -> list[AsyncGrant | Duplicate[Any] | Mismatch | Rejected | Unavailable]:
        """Claims each item, in one call. An item that was refused is its error, as a value."""
        _batches.check_size(items)
        answers = await self._transport.run(_batches.claim_batch(self._core, [item.terms(self._core) for item in items]))
        return [AsyncGrant(self, each) if isinstance(each, _claims.GrantState) else each for each in answers]

    async def settle(self, report: str, *, within: options.Duration | None = None) -> Settled:
        """Repeats a report (`NotSettled.report`) until it is accepted, or raises `OutcomeRefused` or `NotSettled`."""
        within = self._core.limits.settle_within if within is None else options.seconds("within", within)
        return await self._transport.run(_claims.settle_text(self._core, report, within))

    async def settle_batch(self, reports: Sequence[str | SettleItem]) -> list[Settled | OutcomeRefused | NotSettled]:
        """Settles each report or live grant, in one call. A refusal is its error, as a value."""
        read = _batches.read_items(reports)
        return await self._transport.run(_batches.settle_items(self._core, reports, read))

    async def lookup(self, global_id: str) -> Record | None:
        """The claim as the store has it, or None. For people and reports: only a grant lets a caller go ahead."""
        return record(await self._transport.run(_claims.lookup(self._core, global_id)))

    def lock(
        self,
        name: str,
        *,
        mode: Literal["exclusive", "shared"] = "exclusive",
        limit: int | None = None,
        owner: str | None = None,
        lease: options.Duration | None = None,
        fair: bool = False,
        wait: options.Duration | None = None,
    ) -> AsyncLock:
        """A lock, to use in an `async with` statement or with `acquire`. `wait` is how long the statement waits for it.

        `limit`, with `mode="shared"`, is how many holds there are at most at once, 2 to 1000: as of a semaphore. All holders name the same.
        """
        _locks.lock_terms(name, mode, limit, owner, lease, fair, wait)
        return AsyncLock(self, name, mode, limit, owner, lease, fair, wait)

    def global_id(self, operation: str, contents_: Any) -> str:
        """The global ID of this operation, computed here."""
        return contents.global_id(self._core.app, options.operation(operation), contents_)

    async def aclose(self) -> None:
        """Waits for what is under way in the background, and closes idle connections."""
        while self._background:
            await asyncio.wait(set(self._background))
        await self._transport.finish(self._core.limits.claim_within)
        self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _detached(self, scope: Scope, flow: Flow[T]) -> T:
        """Runs a flow that claims; the cancellation of its caller does not break it off, and its grant is given back then."""
        try:
            with _telemetry.span("oncegate claim", scope.operation) as note:
                task = asyncio.ensure_future(self._transport.run(flow))
                answer = await asyncio.shield(task)
                note(_telemetry.of_answer(answer))
                return answer
        except asyncio.CancelledError:
            scope.cancelled = True

            async def finish() -> None:
                try:
                    late = await task
                    if isinstance(late, _claims.GrantState):
                        await self._transport.run(_claims.release(late))
                except OncegateError:
                    pass  # Its event reports it, and no caller is left.

            self._start(finish())
            raise

    def _start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs it in the background; a task without a reference could vanish."""
        task = asyncio.ensure_future(coroutine)
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (crash := task.exception()) is not None and not isinstance(crash, OncegateError):
            log_crash(crash)

    async def _reported(self, operation: str, flow: Flow[T]) -> T:
        """Runs a flow that reports an outcome to its end."""
        with _telemetry.span("oncegate outcome", operation) as note:
            answer = await self._finish(flow)
            note(_telemetry.of_answer(answer))
            return answer

    async def _finish(self, flow: Flow[T]) -> T:
        """Runs a report to its end, even if its caller is cancelled; the cancellation continues afterwards."""
        task = self._start(self._transport.run(flow))
        cancelled: asyncio.CancelledError | None = None
        limit = None
        while not task.done():
            try:
                with nullcontext() if cancelled is None else _shield():
                    await asyncio.wait({task}, timeout=limit)
                if limit is not None:
                    break
            except asyncio.CancelledError as error:
                cancelled = error
                if self._core.limits.settle_within is None:
                    limit = SETTLE_AFTER_CANCELLATION
        if cancelled is not None:
            raise cancelled
        result: T = task.result()
        return result


def _shield() -> AbstractContextManager[Any]:
    """Keeps a scope of anyio from cancelling the task again at each turn of the event loop, as it does until the task has left it."""
    anyio = sys.modules.get("anyio")
    return nullcontext() if anyio is None else anyio.CancelScope(shield=True)


class AsyncGrant(BaseGrant[asyncio.Event]):
    """The claim of one operation, live until the lease ends. Renewed in the background while in an `async with` statement."""

    def __init__(self, client: AsyncClient, state: _claims.GrantState):
        super().__init__(state, asyncio.Event(), asyncio.Event())
        self._client = client
        self._renewing: asyncio.Task[Any] | None = None

    async def renew(self) -> bool:
        """Renews now. Returns false, and `lost` is set, if the claim is not held any more."""
        if not self._state.holds:
            return True
        return await self._client._transport.run(_claims.renewal(self._state))

    async def succeed(self, result: T = None) -> Done[T]:  # type: ignore[assignment]
        """Reports that the work is finished and must never run again, also if the answer is "declined"."""
        return await self._report("success", result)

    async def fail(self) -> Done[Any]:
        """Reports that it certainly did not happen."""
        return await self._report("failure")

    async def give_up(self) -> Done[Any]:
        """Reports that it is not known whether it happened. Repeats are stopped until an operator or a take-over settles it."""
        return await self._report("unknown")

    async def _report(self, outcome: str, result: Any = None) -> Done[Any]:
        return await self._client._reported(self._state.terms.operation, _claims.report_outcome(self._state, outcome, result))

    async def __aenter__(self) -> AsyncGrant:
        self._keep()
        return self

    def _keep(self) -> None:
        self._renewing = self._client._start(self._client._transport.run(_claims.keep_renewing(self._state)))

    def _end(self) -> None:
        self._state.ended = True
        if self._renewing is not None:
            self._renewing.cancel()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self._state.settled or self._state.report is not None:
                pass  # A report that was interrupted is finished in the background.
            elif isinstance(error, self._state.harmless):
                await self.fail()
            else:
                await self.give_up()
        except (NotSettled, OutcomeRefused) as refused:
            # The exception of the work says more; this one is added to it.
            if error is None:
                raise
            add_note(error, str(refused))
        finally:
            self._end()


class AsyncHold:
    """A lock that is held, until it is released or its lease ends. Renewed in the background."""

    def __init__(self, client: AsyncClient, state: _locks.HoldState):
        self._client, self._state = client, state
        self.name, self.mode = state.terms.name, state.terms.mode
        self.attempt = state.attempt
        #: A new one each time the lock becomes held; for the resource to compare.
        self.fence = state.fence
        # : Number of holds of this owner.
        self.holds = state.holds
        #: Set once the lock is lost: stop.
        self.lost_event = asyncio.Event()
        state.on_lost.append(self.lost_event.set)
        self._renewing = client._start(client._transport.run(_locks.keep_renewing(state)))

    @property
    def is_live(self) -> bool:
        return self._state.is_live

    @property
    def lost(self) -> str | None:
        return self._state.lost

    async def release(self) -> None:
        """Releases the lock. Raises `Unavailable` if no gateway answered; its lease ends then."""
        try:
            await self._client._finish(_locks.release(self._state))
        finally:
            self._renewing.cancel()

    async def __aenter__(self) -> AsyncHold:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._state.ended:
            return
        try:
            await self.release()
        except (Unavailable, Rejected):
            self._state.scope.emit("lock_lost", code="not_released")


class AsyncLock:
    """A named lock. `acquire` returns an `AsyncHold` or None; `async with` raises `LockNotAcquired` instead.

    Use a separate object for each task: `async with client.lock(…)`.
    """

    def __init__(
        self,
        client: AsyncClient,
        name: str,
        mode: str,
        limit: int | None,
        owner: str | None,
        lease: options.Duration | None,
        fair: bool,
        wait: options.Duration | None,
    ):
        self._client = client
        self._arguments = (name, mode, limit, owner, lease, fair)
        self._wait = wait
        self._entered: list[AsyncHold] = []

    async def acquire(self, wait: options.Duration | None = None) -> AsyncHold | None:
        """Acquires the lock, waiting up to `wait`. None if it was held by others until then."""
        try:
            return await self._acquire(wait)
        except LockNotAcquired as refused:
            if refused.code != "lock_held":
                raise
            return None

    async def lookup(self) -> LockRecord | None:
        """The holders of the lock and the length of its queue. None if it is free and no request queues. Acquires nothing."""
        return await self._client._transport.run(_locks.lookup(self._client._core, self._arguments[0]))

    async def __aenter__(self) -> AsyncHold:
        hold = await self._acquire(self._wait)
        self._entered.append(hold)
        return hold

    async def __aexit__(self, *_: object) -> None:
        await self._entered.pop().__aexit__()

    async def _acquire(self, wait: options.Duration | None) -> AsyncHold:
        client, core = self._client, self._client._core
        terms = _locks.lock_terms(*self._arguments, wait)
        scope = Scope(core, terms.name, None, core.clock())
        task = asyncio.ensure_future(client._transport.run(_locks.acquire(core, scope, terms)))
        try:
            return AsyncHold(client, await asyncio.shield(task))
        except asyncio.CancelledError:
            scope.cancelled = True
            # A wait for the lock would continue without a caller, and block the requests behind it.
            task.cancel()

            async def withdraw() -> None:
                await asyncio.gather(task, return_exceptions=True)
                await client._transport.run(_locks.withdraw(scope, terms))

            client._start(withdraw())
            raise
