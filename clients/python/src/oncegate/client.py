"""The blocking client."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Union

from . import _batches, _claims, _core, _locks, _telemetry, _work, contents, options
from ._batches import SettleItem
from ._blocking import Transport, in_background
from ._core import ClaimTerms, Core, Flow, Scope
from ._grant import BaseGrant, set_current
from .errors import LockNotAcquired, NotSettled, OncegateError, OutcomeRefused, Rejected, Unavailable
from .values import Answer, Done, Duplicate, Event, LockRecord, Mismatch, Record, Settled

if TYPE_CHECKING:
    from typing_extensions import Unpack


T = TypeVar("T")


class Limits(TypedDict, total=False):
    """Terms of a claim call that are no business values."""

    lease: Union[options.Duration, None]
    retention: Union[options.Duration, None]
    take_over: bool
    #: `unknown`: a lease that ends without an outcome makes the claim unknown, also where the operation's own term releases it.
    on_lease_end: Union[Literal["unknown"], None]
    wait: Union[options.Duration, None]
    #: `refuse` (the default) raises inside a transaction of Django. `allow` is for who reports from an outbox after the commit.
    inside_transaction: Literal["refuse", "allow"]


class Terms(Limits, total=False):
    """Terms of a claim call other than operation and contents."""

    fingerprint: Any


class WorkLimits(Limits, total=False):
    """Terms of a claim call, and options of the work."""

    #: The type of the result, if the work has no annotation; duplicates get it read back.
    result: Any
    #: Instead of the types that the client knows: the result as JSON values, and back.
    serialize: Callable[[Any], Any]
    deserialize: Callable[[Any], Any]
    #: Exceptions of work that had no effect: the operation can be claimed again at once. Their subclasses count.
    nothing_happened: Union[type[BaseException], tuple[type[BaseException], ...]]


class WorkTerms(WorkLimits, total=False):
    """Options of `once` other than operation, contents and work."""

    fingerprint: Any


@dataclass(frozen=True)
class ClaimItem:
    """One claim of a batch."""

    operation: str
    contents: Any
    fingerprint: Any = None
    lease: options.Duration | None = None
    retention: options.Duration | None = None
    take_over: bool = False

    def terms(self, core: Core) -> ClaimTerms:
        return _core.claim_terms(
            core,
            self.operation,
            self.contents,
            fingerprint=self.fingerprint,
            lease=self.lease,
            retention=self.retention,
            take_over=self.take_over,
        )


class Client:
    """One or more gateways in front of the same store. Safe to use from many threads, and after a fork.

    Without `urls` the gateway is `ONCEGATE_URL`, else http://127.0.0.1:8080, and the credential `ONCEGATE_CREDENTIAL`.

    All times are in seconds. `timeout` limits one HTTP call, `claim_within` all tries of a claim, `settle_within` all tries of a
    report (None: no limit). `on_unavailable`: `fail_closed` raises `Unavailable`, `proceed` runs the work anyway (`degraded` is `caller`).
    `enabled=False`, or `ONCEGATE_DISABLED=1` in the environment, claims nothing and runs everything, for tests of other things.
    `on_event` gets each `Event` instead of the log; `traceparent` returns the trace context to pass on.
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
        self._tls = tls
        self._transport = Transport(self._core, tls)

    def once(self, operation: str, contents: Any, work: Callable[[Grant], T], **terms: Unpack[WorkTerms]) -> Answer[T]:
        """Runs `work` unless the operation is a duplicate, and reports the outcome. Duplicates get what `work` returns.

        If it raises `NothingHappened` or one of `nothing_happened`, the operation can be claimed again at once. Any other exception may
        have come after the effect, so the outcome is `unknown`. All are raised again.
        """
        _work.check_work(work, "AsyncClient")
        _work.check_parameters(work)
        return self._once(operation, contents, work, terms)

    def _once(self, operation: str, contents: Any, work: Callable[[Grant], T], terms: Any, plan: _work.Plan | None = None) -> Answer[T]:
        terms = dict(terms)
        plan = plan or _work.Plan.of(work, terms)
        answer = self.claim(operation, contents, **terms)
        if not isinstance(answer, Grant):
            return plan.read(answer)  # type: ignore[no-any-return]
        answer._state.plan = plan
        with answer as grant, set_current(grant):
            with _telemetry.span("oncegate run", operation, internal=True):
                result = work(grant)
                _work.check_result(result)
            return grant.succeed(result)

    def claim(self, operation: str, contents: Any, **terms: Unpack[Terms]) -> Grant | Duplicate[Any] | Mismatch:
        """Claims the operation. Use a `Grant` in a `with` statement, which renews it, and report its outcome there."""
        given: dict[str, Any] = dict(terms)
        _work.check_transaction(given.pop("inside_transaction", "refuse"))
        checked = _core.claim_terms(self._core, operation, contents, **given)
        scope = Scope(self._core, operation, checked.global_id, self._core.clock())
        answer = self._claimed(checked, _claims.claim(self._core, scope, checked))
        return Grant(self, answer) if isinstance(answer, _claims.GrantState) else answer

    def _claimed(self, terms: ClaimTerms, flow: Flow[T]) -> T:
        """Runs a flow that claims; a grant that crosses an interruption is given back."""
        try:
            with _telemetry.span("oncegate claim", terms.operation) as note:
                answer = self._transport.run(flow)
                note(_telemetry.of_answer(answer))
                return answer
        except OncegateError:
            raise
        except BaseException:
            # Interrupted: the claim may have been granted, or be granted yet.
            self._transport.start(_claims.give_back(self._core, terms))
            raise

    def _reported(self, operation: str, flow: Flow[T]) -> T:
        """Runs a flow that reports an outcome."""
        with _telemetry.span("oncegate outcome", operation) as note:
            answer = self._transport.run(flow)
            note(_telemetry.of_answer(answer))
            return answer

    def claim_batch(self, items: Sequence[ClaimItem]) -> list[Grant | Duplicate[Any] | Mismatch | Rejected | Unavailable]:
        """Claims each item, in one call. An item that was refused is its error, as a value."""
        _batches.check_size(items)
        answers = self._transport.run(_batches.claim_batch(self._core, [item.terms(self._core) for item in items]))
        return [Grant(self, each) if isinstance(each, _claims.GrantState) else each for each in answers]

    def settle(self, report: str, *, within: options.Duration | None = None) -> Settled:
        """Repeats a report (`NotSettled.report`) until it is accepted, or raises `OutcomeRefused` or `NotSettled`."""
        within = self._core.limits.settle_within if within is None else options.seconds("within", within)
        return self._transport.run(_claims.settle_text(self._core, report, within))

    def settle_batch(self, reports: Sequence[str | SettleItem]) -> list[Settled | OutcomeRefused | NotSettled]:
        """Settles each report or live grant, in one call. A refusal is its error, as a value."""
        read = _batches.read_items(reports)
        return self._transport.run(_batches.settle_items(self._core, reports, read))

    def lookup(self, global_id: str) -> Record | None:
        """The claim as the store has it, or None. For people and reports: only a grant lets a caller go ahead."""
        fields = self._transport.run(_claims.lookup(self._core, global_id))
        return record(fields)

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
    ) -> Lock:
        """A lock, to use in a `with` statement or with `acquire`. `wait` is how long the `with` statement waits for it.

        `limit`, with `mode="shared"`, is how many holds there are at most at once, 2 to 1000: as of a semaphore. All holders name the same.
        """
        _locks.lock_terms(name, mode, limit, owner, lease, fair, wait)
        return Lock(self, name, mode, limit, owner, lease, fair, wait)

    def global_id(self, operation: str, contents_: Any) -> str:
        """The global ID of this operation, computed here."""
        return contents.global_id(self._core.app, options.operation(operation), contents_)

    def close(self) -> None:
        """Closes idle connections. The client can still be used."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def record(fields: dict[str, Any] | None) -> Record | None:
    if fields is None:
        return None
    return Record(str(fields.get("state", "")), fields.get("operation"), fields.get("result"), fields)


class Grant(BaseGrant[threading.Event]):
    """The claim of one operation, live until the lease ends. Renewed in the background while in a `with` statement."""

    def __init__(self, client: Client, state: _claims.GrantState):
        super().__init__(state, threading.Event(), threading.Event())
        self._client = client

    def renew(self) -> bool:
        """Renews now. Returns false, and `lost` is set, if the claim is not held any more."""
        if not self._state.holds:
            return True
        return self._client._transport.run(_claims.renewal(self._state))

    def succeed(self, result: T = None) -> Done[T]:  # type: ignore[assignment]
        """Reports that the work is finished and must never run again, also if the answer is "declined".

        Duplicates get `result`. If it cannot be sent, the success is reported without it: see `Done.result_omitted`.
        """
        return self._report("success", result)

    def fail(self) -> Done[Any]:
        """Reports that it certainly did not happen."""
        return self._report("failure")

    def give_up(self) -> Done[Any]:
        """Reports that it is not known whether it happened. Repeats are stopped until an operator or a take-over settles it."""
        return self._report("unknown")

    def _report(self, outcome: str, result: Any = None) -> Done[Any]:
        return self._client._reported(self._state.terms.operation, _claims.report_outcome(self._state, outcome, result))

    def __enter__(self) -> Grant:
        self._keep()
        return self

    def _keep(self) -> None:
        self._client._transport.renewals.start(_claims.keep_renewing(self._state), lambda: self._state.ended)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        state = self._state
        try:
            if state.settled:
                pass
            elif state.report is not None:
                # Interrupted while the outcome was being reported.
                core = self._client._core
                self._client._transport.run(_claims.settle(state.scope, state.report, core.limits.settle_within))
            elif isinstance(error, state.harmless):
                self.fail()
            else:
                self.give_up()
        except (NotSettled, OutcomeRefused) as refused:
            # The exception of the work says more; this one is added to it.
            if error is None:
                raise
            add_note(error, str(refused))
        finally:
            state.ended = True


def add_note(error: BaseException, note: str) -> None:
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(note)


class Hold:
    """A lock that is held, until it is released or its lease ends. Renewed in the background."""

    def __init__(self, client: Client, state: _locks.HoldState):
        self._client, self._state = client, state
        self.name, self.mode = state.terms.name, state.terms.mode
        self.attempt = state.attempt
        #: A new one each time the lock becomes held; for the resource to compare.
        self.fence = state.fence
        # : Number of holds of this owner.
        self.holds = state.holds
        #: Set once the lock is lost: stop.
        self.lost_event = threading.Event()
        state.on_lost.append(self.lost_event.set)
        client._transport.renewals.start(_locks.keep_renewing(state), lambda: state.ended)

    @property
    def is_live(self) -> bool:
        return self._state.is_live

    @property
    def lost(self) -> str | None:
        return self._state.lost

    def release(self) -> None:
        """Releases the lock. Raises `Unavailable` if no gateway answered; its lease ends then."""
        self._client._transport.run(_locks.release(self._state))

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        release_quietly(self._state, self.release)


def release_quietly(state: _locks.HoldState, release: Callable[[], None]) -> None:
    """At the end of a `with` statement: the work is done, and the lease ends a lock that could not be released."""
    if state.ended:
        return
    try:
        release()
    except (Unavailable, Rejected):
        state.scope.emit("lock_lost", code="not_released")


class Lock:
    """A named lock. `acquire` returns a `Hold` or None; a `with` statement raises `LockNotAcquired` instead."""

    def __init__(
        self,
        client: Client,
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
        # The holds of `with` statements, innermost last, of each thread.
        self._entered = threading.local()

    def acquire(self, wait: options.Duration | None = None) -> Hold | None:
        """Acquires the lock, waiting up to `wait`. None if it was held by others until then."""
        try:
            return self._acquire(wait)
        except LockNotAcquired as refused:
            if refused.code != "lock_held":
                raise
            return None

    def lookup(self) -> LockRecord | None:
        """The holders of the lock and the length of its queue. None if it is free and no request queues. Acquires nothing."""
        return self._client._transport.run(_locks.lookup(self._client._core, self._arguments[0]))

    def __enter__(self) -> Hold:
        hold = self._acquire(self._wait)
        if not hasattr(self._entered, "holds"):
            self._entered.holds = []
        self._entered.holds.append(hold)
        return hold

    def __exit__(self, *_: object) -> None:
        self._entered.holds.pop().__exit__()

    def _acquire(self, wait: options.Duration | None) -> Hold:
        client, core = self._client, self._client._core
        terms = _locks.lock_terms(*self._arguments, wait)
        scope = Scope(core, terms.name, None, core.clock())
        try:
            return Hold(client, client._transport.run(_locks.acquire(core, scope, terms)))
        except OncegateError:
            raise
        except BaseException:
            # Interrupted: the lock may have been granted, or be granted yet.
            in_background("oncegate-withdraw", lambda: client._transport.run(_locks.withdraw(scope, terms)))
            raise
