"""The rules of one keyed request, without input or output: flows for the claim and the report, and what both mean."""

from __future__ import annotations

import hashlib
import math
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Union

from .. import _claims, _telemetry, options
from .._core import WAIT_OF_A_CALL_MAX, ClaimTerms, Core, Flow, Limits, Scope, claim_terms
from ..errors import NothingHappened, NotSettled, OncegateError, OutcomeRefused, Rejected
from ..events import logger
from ..values import Duplicate
from . import incoming, key, problems
from .incoming import Incoming
from .problems import Problem
from .recorder import Recorder, Reply, replay
from .rules import SAFE_METHODS, Rules, shared_keys

OUTCOMES = ("success", "failure", "unknown")
#: Where neither the rules nor the client limit the wait for a report.
SETTLE_WITHIN = 30.0
#: Of a body that is too large: read and dropped, so that its sender reads the refusal.
DRAINED_BYTES_MAX = 16 * 1024 * 1024
DRAINED_SECONDS_MAX = 5.0

#: State or code of a refusal → result that is counted.
_RESULTS = {
    "in_progress": "in_progress",
    "unknown": "unknown",
    "succeeded": "not_stored",
    "fingerprint_mismatch": "mismatch",
    "store_unavailable": "unavailable",
    "identity_differs": "unavailable",
}

#: None: the request runs without protection.
Claimed = Union[_claims.GrantState, Reply, None]


class Refused(Exception):
    """A request that is refused before its claim."""

    def __init__(self, problem: Problem, *, has_no_key: bool = False):
        super().__init__(problem.detail)
        self.problem, self.has_no_key = problem, has_no_key


class Engine:
    """One middleware: its rules, and the client that it claims with."""

    def __init__(self, core: Core, rules: Rules):
        if not isinstance(rules, Rules):
            raise TypeError(f"rules are Rules(operation=…, principal=…), got {type(rules).__name__}")
        self.core, self.rules = core, rules
        self.is_enabled = rules.is_enabled and core.enabled
        if not self.is_enabled:
            logger.warning("The middleware of %s is switched off: requests with an Idempotency-Key run unprotected", rules.operation)
        own = core.limits
        within = options.duration_in_seconds(rules.claim_within)
        settle = options.duration_in_seconds(rules.settle_within)
        self.limits = Limits(
            own.claim_within if within is None else within,
            settle or own.settle_within or SETTLE_WITHIN,
            own.proceeds if rules.on_unavailable is None else rules.on_unavailable == "proceed",
        )
        self._own_wait = options.duration("wait", rules.wait)
        self.exchange_max = options.duration_in_seconds(rules.exchange_max) or 0.0

    def run_span(self) -> AbstractContextManager[Any]:
        return _telemetry.span("oncegate run", self.rules.operation, internal=True)

    def count(self, result: str) -> None:
        _telemetry.count_request(self.rules.operation, result)

    def emit(self, name: str, **fields: Any) -> None:
        self.core.emit(name, self.rules.operation, None, self.core.clock(), **fields)

    def wants(self, request: Incoming, framework: Any) -> bool:
        """Reports whether this request is protected. `framework` is the framework's own request."""
        if not self.is_enabled:
            return False
        rules, has_key = self.rules, bool(request.lines("idempotency-key"))
        is_doubtful = has_key and request.method in SAFE_METHODS and bool(request.method_overrides())
        is_meant = (rules.protects(request.method) or is_doubtful) and (rules.when is None or rules.when(framework))
        if is_meant and (has_key or rules.required):
            return True
        if (has_key or is_meant) and request.method not in SAFE_METHODS:
            self.count("unprotected")
            self.emit("unprotected", method=request.method)
        return False

    def key(self, request: Incoming) -> str:
        """Returns the key of a protected request."""
        if request.method in SAFE_METHODS:
            detail = "The request has a key and a safe method that a field overrides. Send it with the method that is meant."
            raise Refused(Problem("ambiguous_target", detail))
        lines = request.lines("idempotency-key")
        if not lines:
            detail = "This request needs an Idempotency-Key: send a fresh random value for each operation, such as a UUID."
            raise Refused(Problem("idempotency_key_invalid", detail), has_no_key=True)
        try:
            found = key.parse(lines, joined=request.joined)
        except key.InvalidKey as error:
            raise Refused(Problem("idempotency_key_invalid", f"{error}.")) from error
        if request.is_conversation:
            detail = "A request with an Idempotency-Key cannot become a WebSocket or a gRPC call; send it without the key."
            raise Refused(Problem("not_supported", detail))
        return found

    def refused(self, refused: Refused) -> None:
        """Counts a request that has no claim, and says why."""
        code = refused.problem.code
        self.count("no_key" if refused.has_no_key else "refused")
        if self.rules.observe:
            self.emit("observed", would_be=code)
        else:
            self.emit("refused", code=code)

    def check_principal(self, principal: Any) -> str:
        if self.rules.principal is shared_keys:
            return ""
        if principal is None or principal == "":
            raise Refused(
                Problem("principal_missing", "A request with an Idempotency-Key needs a caller that is known; authenticate first.")
            )
        if not isinstance(principal, str):
            raise TypeError(f"principal returned {type(principal).__name__}; return a text such as str(user.id), or None for nobody")
        return principal

    def too_large(self) -> Problem:
        return Problem("body_too_large", f"A request with an Idempotency-Key has a body of at most {self.rules.body_bytes} bytes.")

    def not_seen(self, advice: str) -> Problem:
        """The refusal of a request whose body another layer has read."""
        logger.error("The body of a request of %s was read before the middleware, so it is refused: %s", self.rules.operation, advice)
        detail = "The service has read the body before the key was checked, so the request was not run. Its log says what to change."
        return Problem("body_not_seen", detail)

    def scope(self, terms: ClaimTerms) -> Scope:
        scope = Scope(self.core, terms.operation, terms.global_id, self.core.clock())
        scope.limits = self.limits
        return scope

    def terms(self, request: Incoming, body: bytes, found: str, principal: str) -> ClaimTerms:
        rules, preferred = self.rules, incoming.wait_preferred(request)
        # What a stranger asks for is bounded by what one call of the gateway waits, and by the wait of this service.
        longest = WAIT_OF_A_CALL_MAX if self._own_wait is None else max(WAIT_OF_A_CALL_MAX, options.duration_seconds(self._own_wait))
        wait = rules.wait if preferred is None else (f"{min(preferred, int(longest))}s" if preferred else None)
        if rules.observe:
            wait = None
        contents = {"key": found, "principal": hashlib.sha256(principal.encode("utf-8", "surrogatepass")).hexdigest()}
        mark = incoming.fingerprint(request, body, rules.fingerprint)
        # A run that is killed, or whose outcome no gateway takes in time, may have had its effect.
        terms = claim_terms(
            self.core,
            rules.operation,
            contents,
            fingerprint=mark,
            lease=rules.lease,
            retention=rules.retention,
            on_lease_end="unknown",
            wait=wait,
        )
        return replace(terms, prefers_wait=bool(preferred))

    def claim(self, scope: Scope, terms: ClaimTerms) -> Flow[Claimed]:
        """Claims the key. Returns the grant, or the response of a repeat or refusal."""
        claimed = yield from self._claim(scope, terms)
        if not isinstance(claimed, Reply):
            self.count("forwarded")
            return claimed
        problem = claimed.problem
        self.count(_RESULTS.get(problem.members.get("state") or problem.code, "refused") if problem else "replayed")
        if self.rules.observe:
            return None
        if scope.has_waited and terms.prefers_wait and terms.wait is not None:
            seconds = math.ceil(options.duration_seconds(terms.wait))
            claimed.fields.append(("Preference-Applied", f"wait={seconds}"))
        return claimed

    def _claim(self, scope: Scope, terms: ClaimTerms) -> Flow[_claims.GrantState | Reply]:
        try:
            answer = yield from _claims.claim(self.core, scope, terms)
        except OncegateError as error:
            if isinstance(error, Rejected) and error.status != 429:
                logger.error("The gateway refused a claim of %s: %s", terms.operation, error)
            problem = problems.problem_of(error) or problems.unavailable()
            self._emit(scope, "unavailable", "refused", code=problem.code)
            return Reply.refusal(problem)
        if isinstance(answer, _claims.GrantState):
            answer.can_be_marked = True
            answer.renewed_until = self.core.clock() + self.exchange_max
            return answer
        would_be = "duplicate" if isinstance(answer, Duplicate) else "mismatch"
        degraded = answer.degraded if isinstance(answer, Duplicate) else None
        more = [("Oncegate-Degraded", degraded)] if degraded else []
        if isinstance(answer, Duplicate) and answer.state == "succeeded":
            reply = replay(answer.result, self.rules)
            self._emit(scope, would_be, "replayed" if reply.problem is None else "refused", code=reply.problem and reply.problem.code)
            return Reply(reply.status, [*reply.fields, *more], reply.body, reply.problem)
        refusal = problems.problem_of(answer)
        assert refusal is not None
        self._emit(scope, would_be, "refused", code=refusal.code, state=refusal.members.get("state"))
        return Reply.refusal(refusal, more)

    def _emit(self, scope: Scope, would_be: str, name: str, **fields: Any) -> None:
        if self.rules.observe:
            scope.emit("observed", would_be=would_be)
        else:
            scope.emit(name, **fields)

    def is_harmless(self, error: BaseException | None) -> bool:
        return isinstance(error, (NothingHappened, *self.rules.nothing_happened, *self.core.nothing_happened))

    def outcome(self, state: _claims.GrantState, recorder: Recorder, error: BaseException | None, complete: bool) -> str:
        """The outcome of a run: of its response, what its handler said, or the error that it raised."""
        is_whole = self.is_whole(recorder, error, complete)
        if recorder.outcome is not None:
            said = recorder.outcome.strip()
            if said not in OUTCOMES:
                state.scope.emit("outcome_invalid", said=said[:40])
            # A success in the head is one of the whole response.
            return said if said in OUTCOMES and (said != "success" or is_whole) else "unknown"
        if state.marked is not None:
            return state.marked
        if self.is_harmless(error) or self.is_harmless(state.seen_error):
            return "failure"
        if not is_whole:
            return "unknown"
        return {"store": "success", "release": "failure", "unknown": "unknown"}[self.rules.meaning(recorder.status)]

    def is_whole(self, recorder: Recorder, error: BaseException | None, complete: bool) -> bool:
        return complete and error is None and not recorder.breaks_off

    def report(self, state: _claims.GrantState, recorder: Recorder, error: BaseException | None, complete: bool) -> Flow[None]:
        """Reports the outcome. A report that fails changes nothing for the caller; an event reports it."""
        outcome = self.outcome(state, recorder, error, complete)
        stored, tombstone = recorder.results() if outcome == "success" and recorder.has_begun else (None, None)
        if not self.is_whole(recorder, error, complete):
            stored = tombstone
        try:
            yield from _claims.report_outcome(state, outcome, stored, instead=tombstone)
        except (NotSettled, OutcomeRefused):
            pass
        except Exception as crash:
            logger.error("The outcome of a request of %s could not be reported", state.terms.operation, exc_info=crash)
