"""The flows of batches. Items that were not done are sent again with their nonces, until time is over."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union

from . import _results, options
from ._claims import GrantState, Report, claim_answer, disabled, identity_differs, read_report, release, report_of
from ._core import Answered, ClaimTerms, Core, Flow, Pause, Request, Scope, call, is_mismatch, json_object
from .errors import Cause, NotSettled, OutcomeRefused, Rejected, Unavailable
from .values import Duplicate, Mismatch, Settled

BATCH_MAX = 1000
Claimed = Union[GrantState, "Duplicate[Any]", Mismatch, Rejected, Unavailable]
SettledItem = Union[Settled, OutcomeRefused, NotSettled]


def check_size(items: Sequence[object]) -> None:
    if not 1 <= len(items) <= BATCH_MAX:
        raise ValueError(f"a batch has 1 to {BATCH_MAX} items, got {len(items)}; split it")


def claim_batch(core: Core, items: list[ClaimTerms]) -> Flow[list[Claimed]]:
    """Claims each item. An item that a gateway refused is its error, as a value: the others are not affected."""
    results: list[Claimed | None] = [None] * len(items)
    strangers: list[GrantState] = []
    scopes = [Scope(core, terms.operation, terms.global_id, core.clock()) for terms in items]
    if not core.enabled:
        return [disabled(scope, terms) for scope, terms in zip(scopes, items, strict=True)]

    def take(at: int, answered: Answered) -> bool:
        if answered.status in (201, 409) or is_mismatch(answered.body):
            answer = claim_answer(scopes[at], items[at], answered)
            if isinstance(answer, Duplicate) and answer.state == "in_progress":
                scopes[at].emit("duplicate", state=answer.state)
            results[at] = answer
            if isinstance(answer, GrantState) and answer.terms.global_id != items[at].global_id:
                results[at] = identity_differs(items[at], answer)
                strangers.append(answer)
            elif isinstance(answer, GrantState) and not answer.is_live:
                answer.lose("not_renewed")
        elif 400 <= answered.status < 500 and answered.status != 429:
            results[at] = Rejected(answered.status, answered.body)
        return results[at] is not None

    bodies = [terms.body(None) for terms in items]
    left = yield from _until_done(core, "/v1/claims/batch", bodies, core.limits.claim_within, take)
    for at, cause in left.items():
        if isinstance(cause, Answered) and cause.status == 429:
            results[at] = Rejected(429, cause.body)
        else:
            results[at] = Unavailable([_cause_of(core, cause)])
    for state in strangers:
        yield from release(state)
    return [result for result in results if result is not None]


@dataclass(frozen=True)
class SettleItem:
    """The outcome of a live grant, for `settle_batch`."""

    grant: Any
    outcome: Literal["success", "failure", "unknown"] = "success"
    result: Any = None

    def report(self) -> Report:
        state: GrantState = self.grant._state
        if state.attempt is None or state.settled or state.report is not None:
            raise ValueError("the grant has no outcome to report: it was reported, or was granted by the caller's own policy")
        options.choice("outcome", self.outcome, ("success", "failure", "unknown"))
        text, omitted, _ = _results.encode(self.result) if self.outcome == "success" else (None, None, "")
        state.report = report_of(state, self.outcome, _results.marker(omitted) if omitted else text)
        state.ended = True
        return state.report

    def settled(self, end: SettledItem) -> None:
        self.grant._state.settled = not isinstance(end, NotSettled)


def read_items(items: Sequence[str | SettleItem]) -> list[Report]:
    check_size(items)
    return [item.report() if isinstance(item, SettleItem) else read_report(item) for item in items]


def settle_items(core: Core, items: Sequence[str | SettleItem], reports: list[Report]) -> Flow[list[SettledItem]]:
    """Reports kept reports and the outcomes of live grants."""
    ends = yield from settle_batch(core, reports, core.limits.settle_within)
    for item, end in zip(items, ends, strict=True):
        if isinstance(item, SettleItem):
            item.settled(end)
    return ends


def settle_batch(core: Core, reports: list[Report], within: float | None) -> Flow[list[SettledItem]]:
    """Reports each outcome. The error of a refusal, or of an outcome that no gateway accepted, is a value."""
    results: list[SettledItem | None] = [None] * len(reports)

    def take(at: int, answered: Answered) -> bool:
        body, report = answered.body, reports[at]
        scope = Scope(core, report.operation or "-", report.global_id, core.clock())
        if answered.status in (200, 202):
            state: Any = "spooled" if answered.status == 202 else body.get("state", "")
            results[at] = Settled(state, body.get("late"), body.get("degraded"), None, report.global_id)
            scope.emit("reported", outcome=report.outcome, state=state, late=body.get("late"))
        elif answered.status == 409:
            code = str(body.get("code", ""))
            results[at] = OutcomeRefused(code)
            scope.emit("outcome_refused", outcome=report.outcome, code=code)
        elif 400 <= answered.status < 500 and answered.status != 429:
            results[at] = NotSettled(report.text(), None, Rejected(answered.status, body))
        return results[at] is not None

    bodies = [
        json_object(
            {"global_id": each.global_id, "attempt": each.attempt, "outcome": each.outcome, "operation": each.operation},
            contents=each.contents,
            result=each.result,
        )
        for each in reports
    ]
    left = yield from _until_done(core, "/v1/outcomes/batch", bodies, within, take)
    for at, cause in left.items():
        results[at] = NotSettled(reports[at].text(), None, Unavailable([_cause_of(core, cause)]))
    return [result for result in results if result is not None]


def _cause_of(core: Core, cause: Answered | Cause) -> Cause:
    if isinstance(cause, Cause):
        return cause
    body = cause.body
    detail = f"{cause.status} {body.get('code')}: {body.get('detail')}"
    return Cause(core.urls[cause.at], "answer", detail, cause.status, body.get("code"), body.get("request_id"))


def _until_done(
    core: Core, path: str, bodies: list[str], within: float | None, take: Callable[[int, Answered], bool]
) -> Flow[dict[int, Answered | Cause]]:
    """Sends the items until `take` has accepted each. Returns those left when time was over, with their last answers."""
    check_size(bodies)
    scope = Scope(core, "batch", None, core.clock())
    ends = None if within is None else core.clock() + within
    left = list(range(len(bodies)))
    last: dict[int, Answered | Cause] = {}
    rounds = 0
    while True:
        request = Request("POST", path, '{"items":[' + ",".join(bodies[at] for at in left) + "]}", answers_with="items")
        remaining = None if ends is None else max(ends - core.clock(), 0.001)
        try:
            answered = yield from call(scope, request, remaining)
        except Unavailable as unavailable:
            if not last:
                scope.emit("unavailable", causes=unavailable.causes)
                raise
            return dict.fromkeys(left, unavailable.causes[-1])
        items = answered.body.get("items")
        if not isinstance(items, list) or len(items) != len(left):
            raise Unavailable([Cause(core.urls[answered.at], "not_a_gateway", "the answer has another number of items")])
        pause, again = 0.0, []
        for at, body in zip(left, items, strict=True):
            item = Answered(int(body.get("status", 0)), body, answered.at, answered.sent, answered.came)
            if not take(at, item):
                last[at] = item
                again.append(at)
                pause = max(pause, body.get("retry_after_ms", 0) / 1000)
        if not again:
            return {}
        left, rounds = again, rounds + 1
        pause = max(pause, random.uniform(0, min(1.0, 0.05 * 2 ** min(rounds, 10))))
        if ends is not None and core.clock() + pause >= ends:
            return {at: last[at] for at in left}
        yield Pause(pause)
