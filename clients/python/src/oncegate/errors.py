"""Errors of the client. Duplicates and mismatches are values instead: see `values`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cause:
    """The last failure of one gateway."""

    url: str
    #: `dns`, `refused`, `timeout`, `tls`, `connection` (closed or broken), `not_a_gateway` (check the URL), `answer` (5xx) or
    #: `too_late` (the grant or hold arrived after its lease had ended by the caller's clock; it was released).
    kind: str
    detail: str
    status: int | None = None
    code: str | None = None
    request_id: str | None = None

    def __str__(self) -> str:
        return f"{self.url}: {self.kind}: {self.detail}"

    @property
    def may_have_acted(self) -> bool:
        """The call may have had an effect. One that is overloaded or draining has not started it, and what came too late was released."""
        if self.kind == "answer":
            return self.status == 500 or self.code == "outcome_unknown"
        return self.kind not in ("dns", "refused", "tls", "too_late")


class OncegateError(Exception):
    """Base of all errors of this package, except wrong arguments (`ValueError`, `TypeError`)."""

    def __reduce__(self) -> Any:
        # Errors travel between processes: Celery, multiprocessing.
        return _restored, (type(self), self.args, vars(self))


def _restored(kind: type[OncegateError], arguments: tuple[Any, ...], fields: dict[str, Any]) -> OncegateError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    vars(error).update(fields)
    return error


class Unavailable(OncegateError):
    """No gateway gave an answer in time. The work was not started. `causes` holds the last failure of each gateway tried. With
    `may_have_acted` a gateway may have done what was asked, and its answer was lost: a claim may hold until it ends."""

    def __init__(self, causes: list[Cause], may_have_acted: bool | None = None):
        super().__init__("no gateway answered: " + "; ".join(map(str, causes)))
        self.causes = causes
        self.may_have_acted = any(cause.may_have_acted for cause in causes) if may_have_acted is None else may_have_acted


class Rejected(OncegateError):
    """A gateway refused the call: a mistake of the caller, or a quota (429) that was still used up when time was over."""

    def __init__(self, status: int, problem: dict[str, Any]):
        super().__init__(f"{status} {problem.get('code')}: {problem.get('detail')} (request {problem.get('request_id')})")
        self.status = status
        self.code: str | None = problem.get("code")
        self.detail: str | None = problem.get("detail")
        self.request_id: str | None = problem.get("request_id")
        #: Seconds until a repeat can help; None where it cannot.
        self.retry_after: float | None = problem["retry_after_ms"] / 1000 if "retry_after_ms" in problem else None


class OutcomeRefused(OncegateError):
    """The outcome was answered with 409. `superseded` after a success: perhaps done twice, so raise an alarm."""

    def __init__(self, code: str, result: Any = None):
        super().__init__(f"the outcome was refused: {code}")
        self.code, self.result = code, result


class NotSettled(OncegateError):
    """No gateway has accepted the outcome; `__cause__` says why. Keep `report`, and pass it to `settle` later."""

    def __init__(self, report: str, result: Any, why: Exception):
        super().__init__(f"no gateway has accepted the outcome yet: {why}")
        self.report, self.result = report, result


class NotCanonical(OncegateError, ValueError):
    """The contents could be read as something else by others. Nothing was sent."""

    def __init__(self, reason: str, path: str, advice: str):
        super().__init__(f"{path}: {advice}")
        self.reason, self.path = reason, path


class ResultNotStored(OncegateError):
    """The operation was done before, and its result was not stored: `why` is `not_serialisable`, `too_large`, `refused` or `unreadable`."""

    def __init__(self, why: str, global_id: str):
        super().__init__(f"the operation was done before, but its result was not stored: {why}; look up its effect")
        self.why, self.global_id = why, global_id


class NotRun(OncegateError):
    """The operation did not run here, and `answer` (a `Duplicate` or `Mismatch`) has no result. Raised by `value()` only."""

    def __init__(self, answer: Any):
        what = getattr(answer, "state", None) or getattr(answer, "code", None)
        super().__init__(f"the operation did not run: {what}")
        self.answer = answer


class NothingHappened(OncegateError):
    """Raised by the work: it failed and certainly had no effect. The operation can be claimed again at once."""


class LockNotAcquired(OncegateError):
    """The lock was held until the wait was over (`lock_held`), or `code` says why the request was refused.

    That is `upgrade_refused`, `limit_differs` (`limit` is the one in use) or `withdrawn`.
    """

    def __init__(self, name: str, code: str, retry_after: float, limit: int | None = None):
        in_use = "" if limit is None else f"; its holders have a limit of {limit}"
        super().__init__(f"the lock {name} was not acquired: {code}{in_use}")
        self.name, self.code, self.retry_after, self.limit = name, code, retry_after, limit
