"""The flows of a claim: claim call, renewal, outcome, and reports that are kept for later."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any, Union

from . import _results, options
from ._core import (
    Answered,
    Behind,
    ClaimTerms,
    Core,
    Flow,
    Pause,
    Request,
    Scope,
    call,
    contents_of_report,
    find,
    json_object,
    wait_of_call,
)
from ._lease import Lease, keep_lease, renew
from ._lost import GIVE_BACK_SECONDS_MAX, find_grant
from ._work import Plan
from .contents import id_of
from .errors import Cause, NothingHappened, NotSettled, OutcomeRefused, Rejected, Unavailable
from .values import Done, Duplicate, Mismatch, Settled


@dataclass
class GrantState(Lease):
    """State of a live claim, for the grants of both clients. Without an attempt the caller's own policy let the work proceed."""

    terms: ClaimTerms
    fence: int | None = None
    repeated: bool = False
    taken_over: bool = False
    degraded: str | None = None
    would_be: str | None = None
    #: The report that is being made: it is never replaced by another one.
    report: Report | None = None
    settled: bool = False
    #: Outcome that the handler of a request has marked, and the error that the framework has answered for it.
    can_be_marked: bool = False
    plan: Plan | None = None
    marked: str | None = None
    seen_error: BaseException | None = None

    @property
    def harmless(self) -> tuple[type[BaseException], ...]:
        """Errors of work that had no effect."""
        return (NothingHappened, *self.scope.core.nothing_happened, *(self.plan.harmless if self.plan else ()))

    @property
    def holds(self) -> bool:
        """False for a claim that is only observed, or was granted by the caller's own policy: it has nothing to renew or to lose."""
        return self.attempt is not None and self.would_be is None

    @property
    def is_live(self) -> bool:
        return not self.holds or super().is_live


@dataclass(frozen=True)
class Report:
    """An outcome on its way to a gateway; as text it can be kept and settled later, by a client in any language."""

    global_id: str
    attempt: str
    outcome: str
    operation: str | None
    #: In canonical form.
    contents: str | None
    #: JSON.
    result: str | None
    gateway: str | None

    def text(self) -> str:
        fields = {"global_id": self.global_id, "attempt": self.attempt, "outcome": self.outcome}
        fields |= {"operation": self.operation, "gateway": self.gateway}  # type: ignore[dict-item]
        return json_object(fields, contents=self.contents, result=self.result)

    def body(self) -> str:
        fields = {"attempt": self.attempt, "outcome": self.outcome, "operation": self.operation}
        return json_object(fields, contents=self.contents, result=self.result)


def read_report(text: str) -> Report:
    expected = "expected the `report` of a NotSettled, unchanged"
    if not isinstance(text, str):
        raise TypeError(f"a report is a str, got {type(text).__name__}; {expected}")
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not a report: {error}; {expected}") from error
    needed = [isinstance(fields, dict) and fields.get(name) for name in ("global_id", "attempt", "outcome")]
    if not all(isinstance(value, str) for value in needed):
        raise ValueError(f"not a report: global_id, attempt or outcome is missing; {expected}")
    options.global_id(fields["global_id"])
    options.choice("outcome", fields["outcome"], ("success", "failure", "unknown"))
    contents = contents_of_report(fields["contents"]) if "contents" in fields else None
    result = _results.compact(fields["result"]) if "result" in fields else None
    identity = (fields["global_id"], fields["attempt"], fields["outcome"])
    return Report(*identity, fields.get("operation"), contents, result, fields.get("gateway"))


def claim(core: Core, scope: Scope, terms: ClaimTerms) -> Flow[Union[GrantState, Duplicate[Any], Mismatch]]:
    """The claim call, with its policy for when no gateway answers."""
    if not core.enabled:
        return disabled(scope, terms)
    try:
        return (yield from _claim(core, scope, terms))
    except Unavailable as unavailable:
        if scope.cancelled or not scope.limits.proceeds:
            scope.emit("unavailable", causes=unavailable.causes)
            if scope.acted:
                yield Behind(give_back(scope.core, terms))
            raise
        scope.emit("proceeded", causes=unavailable.causes)
        return GrantState(scope, None, None, math.inf, terms, degraded="caller")
    except Rejected:
        if scope.acted:
            yield Behind(give_back(scope.core, terms))
        raise


def _claim(core: Core, scope: Scope, terms: ClaimTerms) -> Flow[Union[GrantState, Duplicate[Any], Mismatch]]:
    wait_ends = core.clock() + (options.duration_seconds(terms.wait) if terms.wait else 0.0)
    first = True
    while True:
        left = max(wait_ends - core.clock(), 0.0)
        wait, seconds = wait_of_call(terms.wait, left, first)
        request = Request("POST", "/v1/claims", terms.body(wait))
        answered = yield from call(scope, request, scope.limits.claim_within, wait=seconds)
        answer = claim_answer(scope, terms, answered)
        scope.has_waited = scope.has_waited or answered.body.get("waited_ms", 0) > 0
        if isinstance(answer, GrantState) and answer.terms.global_id != terms.global_id:
            yield from release(answer)
            scope.acted = False
            raise identity_differs(terms, answer)
        if isinstance(answer, GrantState) and not answer.is_live:
            yield from release(answer)
            cause = Cause(core.urls[answered.at], "too_late", "the grant arrived after its lease had ended, and was released")
            scope.acted = False
            raise Unavailable([cause])
        if not (isinstance(answer, Duplicate) and answer.state == "in_progress"):
            return answer
        left, pause = wait_ends - core.clock(), answered.pause_after(seconds)
        if left <= max(pause, 0.001) or scope.cancelled:
            scope.emit("duplicate", state=answer.state)
            return answer
        # The gateway has shortened the wait, or has no room for waiters.
        yield Pause(pause)
        first = False


def claim_answer(scope: Scope, terms: ClaimTerms, answered: Answered) -> GrantState | Duplicate[Any] | Mismatch:
    """The answer as a value, and its event; a duplicate in progress may be waited for, so its event is the caller's."""
    body = answered.body
    if answered.status == 201:
        return granted(scope, terms, answered)
    if answered.status == 409:
        duplicate = duplicate_of(terms.global_id, body)
        if duplicate.state != "in_progress":
            scope.emit("duplicate", state=duplicate.state)
        return duplicate
    code = str(body.get("code", ""))
    scope.emit("mismatch", code=code)
    return Mismatch(code, terms.global_id)


def granted(scope: Scope, terms: ClaimTerms, answered: Answered) -> GrantState:
    body = answered.body
    # Reports go to the ID that the gateway knows.
    terms = replace(terms, global_id=str(body["global_id"]))
    state = GrantState(
        scope,
        body["attempt"],
        answered.at,
        answered.lease_ends,
        terms,
        body.get("fence"),
        body.get("repeated") is True,
        body.get("taken_over") is True,
        body.get("degraded"),
        body.get("would_be"),
    )
    fields = {name: getattr(state, name) for name in ("repeated", "taken_over", "degraded", "would_be")}
    scope.emit("granted", **fields)
    return state


def disabled(scope: Scope, terms: ClaimTerms) -> GrantState:
    """The grant of a client that is switched off."""
    return GrantState(scope, None, None, math.inf, terms, degraded="disabled")


def identity_differs(terms: ClaimTerms, state: GrantState) -> Rejected:
    """The error of a grant for another operation than the one that was claimed."""
    core = state.scope.core
    if core.app != "default" and state.terms.global_id == id_of("default", terms.operation, terms.contents):
        why = "the gateway has no apps, so it knows no credentials: make the client without one, or configure the app"
    else:
        why = "the gateway has computed the global ID by other rules than this client: use the client of its version"
    return Rejected(201, {"code": "identity_differs", "detail": f"{why}; the claim was released, and nothing has run"})


def duplicate_of(global_id: str, body: dict[str, Any]) -> Duplicate[Any]:
    omitted = _results.omitted(body.get("result")) or ("batch" if body.get("result_omitted") is True else None)
    return Duplicate(
        body.get("state", ""),
        None if omitted else body.get("result"),
        body.get("retry_after_ms", 1000) / 1000,
        body.get("claimed_at"),
        body.get("expires_at"),
        body.get("contents_verified") is not False,
        body.get("degraded"),
        global_id,
        omitted,
    )


def mark(state: GrantState, outcome: str) -> None:
    options.choice("outcome", outcome, ("success", "failure", "unknown"))
    if not state.can_be_marked:
        raise RuntimeError("mark() is for handlers behind the middleware; inside of once raise NothingHappened, or return the result")
    state.marked = outcome


def release(state: GrantState) -> Flow[None]:
    """Gives back a grant that is not used; its lease ends in any case."""
    state.settled = state.ended = True
    try:
        yield from settle(state.scope, report_of(state, "failure", None), state.scope.core.timeout)
    except (NotSettled, OutcomeRefused):
        pass  # `settle` has emitted the event.


def give_back(core: Core, terms: ClaimTerms) -> Flow[None]:
    """Gives back the grant of a claim call that ended without an answer, if there is one; its lease ends in any case."""
    within = core.limits.settle_within
    scope = Scope(core, terms.operation, terms.global_id, core.clock())
    ends = scope.began + (GIVE_BACK_SECONDS_MAX if within is None else min(within, GIVE_BACK_SECONDS_MAX))
    try:
        attempt = yield from find_grant(scope, terms, ends)
        if attempt is not None:
            report = Report(terms.global_id, attempt, "failure", terms.operation, terms.contents, None, None)
            yield from settle(scope, report, max(ends - core.clock(), 0.001))
    except (Unavailable, Rejected, NotSettled, OutcomeRefused):
        pass  # Each try has emitted its event.


def renewal(state: GrantState) -> Flow[bool]:
    """One renewal call. Returns true if the claim is still held; false, and `lost` is set, if it is not."""
    path = f"/v1/claims/{state.terms.global_id}/renewal"
    return renew(state, Request("POST", path, json_object({"attempt": state.attempt})))


def keep_renewing(state: GrantState) -> Flow[None]:
    if state.holds:
        yield from keep_lease(state, lambda: renewal(state))


def report_of(state: GrantState, outcome: str, result: str | None) -> Report:
    assert state.attempt is not None
    gateway = None if state.at is None else state.scope.core.urls[state.at]
    terms = state.terms
    return Report(terms.global_id, state.attempt, outcome, terms.operation, terms.contents, result, gateway)


def report_outcome(state: GrantState, outcome: str, result: Any = None, *, instead: Any = None) -> Flow[Done[Any]]:
    """Reports the outcome of the work, and repeats it until it is accepted. `instead` is stored where the result is refused."""
    scope = state.scope
    state.ended = True
    text, omitted, why = _results.encode(result, state.plan.serialize if state.plan else None)
    if state.degraded == "disabled":
        state.settled = True
        return Done(result, None, "disabled", None, None, None, state.terms.global_id)
    if state.attempt is None:
        done = yield from _claim_afterwards(state, result)
        if done is not None:
            state.settled = True
            return done
    if omitted is not None:
        scope.emit("result_omitted", why=why)
        text = _results.marker(omitted)
    state.report = report_of(state, outcome, text)
    try:
        settled = yield from settle(scope, state.report, scope.limits.settle_within, result, instead=instead)
    except (NotSettled, OutcomeRefused):
        state.settled = True
        raise
    state.settled = True
    return Done(
        result,
        settled.state,
        state.degraded or settled.degraded,
        settled.late,
        state.would_be,
        omitted or settled.result_omitted,
        settled.global_id,
    )


def _claim_afterwards(state: GrantState, result: Any) -> Flow[Done[Any] | None]:
    """After `proceed`: claims with the same nonce, so that repeats are stopped at least from here on. None: granted."""
    scope, terms = state.scope, state.terms
    late: bool | None = None
    request = Request("POST", "/v1/claims", terms.body(None))
    try:
        answer = claim_answer(scope, terms, (yield from call(scope, request, scope.core.timeout)))
        if isinstance(answer, GrantState):
            state.attempt, state.at, state.terms = answer.attempt, answer.at, answer.terms
            return None
        late = True
    except (Unavailable, Rejected):
        pass  # Each try has emitted its event, and `state: None` says that nothing was recorded.
    return Done(result, None, "caller", late, None, None, terms.global_id)


def settle(scope: Scope, report: Report, within: float | None, result: Any = None, *, instead: Any = None) -> Flow[Settled]:
    """Repeats a report until it is accepted (200 or 202) or refused (409). A result that is refused is left out."""
    core = scope.core
    start = core.urls.index(report.gateway) if report.gateway in core.urls else None
    path = f"/v1/claims/{report.global_id}/outcome"
    whole, omitted = report, None
    while True:
        try:
            answered = yield from call(scope, Request("POST", path, report.body()), within, start=start)
            if answered.status == 422:
                raise Rejected(422, answered.body)
        except (Unavailable, Rejected) as why:
            if isinstance(why, Rejected) and report.result is not None and why.status in (400, 413, 422):
                # The operation has succeeded whether or not its result can be stored.
                scope.emit("result_omitted", why=str(why))
                # A gateway that refuses the marker too gets no result.
                left = None if omitted else _results.encode(instead)[0] or _results.marker("refused")
                report, omitted = replace(report, result=left), "refused"
                continue
            scope.emit("not_settled", outcome=report.outcome, why=str(why))
            raise NotSettled(whole.text(), result, why) from why
        body = answered.body
        if answered.status == 409:
            code = str(body.get("code", ""))
            scope.emit("outcome_refused", outcome=report.outcome, code=code)
            raise OutcomeRefused(code, result)
        state: Any = "spooled" if answered.status == 202 else body.get("state", "")
        settled = Settled(state, body.get("late"), body.get("degraded"), omitted, report.global_id)
        fields = {"outcome": report.outcome, "state": state, "late": settled.late, "degraded": settled.degraded}
        scope.emit("reported", **fields)
        return settled


def settle_text(core: Core, text: str, within: float | None) -> Flow[Settled]:
    report = read_report(text)
    if not core.enabled:
        return Settled("disabled", None, "disabled", None, report.global_id)
    scope = Scope(core, report.operation or "-", report.global_id, core.clock())
    result = None if report.result is None else json.loads(report.result)
    return (yield from settle(scope, report, within, result))


def lookup(core: Core, global_id: str) -> Flow[dict[str, Any] | None]:
    options.global_id(global_id)
    if not core.enabled:
        return None
    scope = Scope(core, "-", global_id, core.clock())
    return (yield from find(scope, Request("GET", f"/v1/claims/{global_id}", None)))
