"""A client of Oncegate in one file, to be copied. Python 3.11 or later, nothing but the standard library.

    gateway = Gateway(["http://10.0.0.5:8080", "http://10.0.0.6:8080"], credential="shop.the_secret")
    answer = gateway.run_once("order.submit", {"order_id": "A-1001"}, lambda held: place(order, fence=held.fence))

`run_once` claims the operation, renews the claim while the work runs, and reports what became of it. That somebody else does it
or did it is an answer (`Duplicate`), not an exception. What to do with each answer: docs/callers.md of the gateway.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import random
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

# What came of asking. ------------------------------------------------------------------------------------------------


@dataclass
class Done:
    """The work ran here, and its end is recorded."""

    result: Any
    #: What stands now: `succeeded`, `spooled` (kept by one gateway, to be delivered), or None if nothing could be recorded.
    state: str | None
    #: The policy that answered in the store's place, at the claim or at the outcome: repeats may not have been noticed.
    #: `caller` is this client's own `proceed`.
    degraded: str | None
    #: True: the claim was gone when the outcome came, so somebody else may have done it as well. None: cannot be told.
    late: bool | None


@dataclass
class Duplicate:
    """Somebody else does it or did it. `state` is `in_progress`, `succeeded` or `unknown`."""

    state: str
    #: What a success left, for whoever asks again.
    result: Any
    #: Seconds after which to ask again, while it is in progress.
    retry_after: float
    degraded: str | None


@dataclass
class Mismatch:
    """The same operation was claimed with another fingerprint, or with other contents of the same ID."""

    code: str


class Unavailable(Exception):
    """No gateway could tell in time. The work was not begun."""


class Rejected(Exception):
    """A gateway refuses this call as it is: a mistake of the caller, or (429) more than its quota."""

    def __init__(self, status: int, problem: dict[str, Any]):
        super().__init__(f"{status} {problem.get('code')}: {problem.get('detail')}")
        self.status, self.code = status, problem.get("code")


class NothingHappened(Exception):
    """Raised by the work: it failed, and certainly had no effect. It can be claimed again at once."""


class OutcomeRefused(Exception):
    """The outcome was answered with 409. `superseded` after a success: perhaps done twice, so raise an alarm."""

    def __init__(self, code: str, result: Any):
        super().__init__(f"the outcome was refused: {code}")
        self.code, self.result = code, result


class NotSettled(Exception):
    """No gateway took the outcome in time. `report` is text: keep it, and give it to `Gateway.settle` later."""

    def __init__(self, report: str, result: Any):
        super().__init__("no gateway has taken the outcome yet")
        self.report, self.result = report, result


class NotCanonical(ValueError):
    """These contents would not mean the same to every reader."""


# The gateway. --------------------------------------------------------------------------------------------------------


class Gateway:
    """Gateways in front of one store: it does not matter which of them is asked. May be used by many threads at once.

    `on_unavailable` is the caller's own policy when no gateway can tell: `fail_closed` raises `Unavailable`, `proceed` runs the
    work unprotected, and says so. All times are in seconds. `timeout` is of one call and longer than the gateways' deadline;
    `claim_within` bounds all tries of one claim, `settle_within` those of one outcome (None: until it is taken).
    """

    def __init__(
        self,
        urls: list[str],
        credential: str | None = None,
        on_unavailable: str = "fail_closed",
        timeout: float = 2.0,
        claim_within: float = 5.0,
        settle_within: float | None = 30.0,
    ):
        if not urls or on_unavailable not in ("fail_closed", "proceed"):
            raise ValueError("at least one URL, and `fail_closed` or `proceed`")
        self._urls = [urlsplit(url) for url in urls]
        self._credential = credential
        self._proceeds = on_unavailable == "proceed"
        self._timeout, self._claim_within, self._settle_within = timeout, claim_within, settle_within
        # The gateway that answered last is asked first, so that one that is gone costs one timeout, not one a call.
        self._first = 0

    def run_once(
        self,
        operation: str,
        contents: Any,
        work: Callable[[Held], Any],
        *,
        fingerprint: Any = None,
        lease: str | None = None,
        retention: str | None = None,
        take_over: bool = False,
    ) -> Done | Duplicate | Mismatch:
        """Runs `work` if nobody else has, and reports its end. What it returns is the result that repeats are told.

        If it raises `NothingHappened`, the operation can be claimed again at once; any other exception may have come after
        the effect, so the outcome is `unknown`. Both are raised again.
        """
        answer = self.claim(
            operation, contents, fingerprint=fingerprint, lease=lease, retention=retention, take_over=take_over
        )
        if not isinstance(answer, Held):
            return answer
        with answer as held:
            if not held.is_ours:
                raise NothingHappened("the answer came when the lease was over")
            result = work(held)
            return held.succeed(result)

    def claim(
        self,
        operation: str,
        contents: Any,
        *,
        fingerprint: Any = None,
        lease: str | None = None,
        retention: str | None = None,
        take_over: bool = False,
    ) -> Held | Duplicate | Mismatch:
        """Asks whether to go ahead. A `Held` is to be used in a `with` statement, which renews it."""
        # Fresh for each try at the operation, the same for all repeats of this one question: so a claim whose answer was lost
        # is recognised as ours.
        fields = {"operation": operation, "attempt_nonce": secrets.token_hex(16), "lease": lease, "retention": retention}
        fields |= {"fingerprint": fingerprint, "take_over": take_over or None}
        # In their one spelling, so that what would be read differently elsewhere is refused here.
        spelled = canonical(contents)
        claim = _Claim(operation, spelled, _body(fields, spelled))
        try:
            return self._claim(claim, self._claim_within)
        except Unavailable:
            if not self._proceeds:
                raise
            return Held(self, claim, None, 0.0)

    def settle(self, report: str, *, within: float | None = None, result: Any = None) -> dict[str, Any]:
        """Repeats a report until it is taken (200 or 202) or refused (409). Repeating it does no harm."""
        target, body = json.loads(report)
        try:
            status, answer, _ = self._ask(f"/v1/claims/{target}/outcome", body, within)
        except Unavailable:
            raise NotSettled(report, result) from None
        if status == 409:
            raise OutcomeRefused(answer.get("code", ""), result)
        return answer if status == 200 else answer | {"state": "spooled"}

    def global_id(self, operation: str, contents: Any) -> str:
        """What the gateway will call this operation, computed here."""
        app = self._credential.rpartition(".")[0] if self._credential else "default"
        return global_id(app, operation, contents)

    def _claim(self, claim: _Claim, within: float) -> Held | Duplicate | Mismatch:
        status, answer, sent = self._ask("/v1/claims", claim.body, within)
        if status == 201:
            return Held(self, claim, answer, sent)
        if status == 409:
            after = answer.get("retry_after_ms", 1000) / 1000
            return Duplicate(answer.get("state", ""), answer.get("result"), after, answer.get("degraded"))
        return Mismatch(answer.get("code", ""))

    def _ask(self, path: str, body: str, within: float | None) -> tuple[int, dict[str, Any], float]:
        """Asks one gateway after the other until one of them has answered, and when that question was sent."""
        ends = None if within is None else time.monotonic() + within
        tries = 0
        while True:
            at = self._first + tries
            # The lease counts from here: the answer may be long on its way.
            sent = time.monotonic()
            left = self._timeout if ends is None else min(self._timeout, max(ends - sent, 0.001))
            status, answer = self._post(self._urls[at % len(self._urls)], path, body, left)
            if status in (200, 201, 202, 409) or (status == 422 and str(answer.get("code")).endswith("_mismatch")):
                self._first = at % len(self._urls)
                return status, answer, sent
            if 400 <= status < 500 and status != 429:
                raise Rejected(status, answer)
            tries += 1
            pause = answer.get("retry_after_ms", 1000) / 1000 if status == 429 else 0.0
            if tries % len(self._urls) == 0:
                # Full jitter: those who failed together do not come back together.
                pause = max(pause, random.uniform(0, min(1.0, 0.05 * 2 ** min(tries // len(self._urls), 10))))
            if ends is not None and time.monotonic() + pause >= ends:
                if status == 429:
                    raise Rejected(status, answer)
                raise Unavailable(f"no gateway could tell; the last one said {status or 'nothing'} {answer.get('code', '')}")
            time.sleep(pause)

    def _post(self, url: Any, path: str, body: str, timeout: float) -> tuple[int, dict[str, Any]]:
        """One call. Status 0 if there was no answer, or not one of a gateway: then nobody knows whether it was taken."""
        secure = url.scheme == "https"
        connection = (http.client.HTTPSConnection if secure else http.client.HTTPConnection)(url.netloc, timeout=timeout)
        headers = {"Content-Type": "application/json"}
        if self._credential:
            headers["Authorization"] = f"Bearer {self._credential}"
        try:
            connection.request("POST", url.path.rstrip("/") + path, body.encode(), headers)
            answer = connection.getresponse()
            told = json.loads(answer.read())
            return (answer.status, told) if isinstance(told, dict) else (0, {})
        except (OSError, http.client.HTTPException, ValueError):
            return 0, {}
        finally:
            connection.close()


@dataclass
class _Claim:
    operation: str
    #: The contents in their one spelling.
    contents: str
    #: The whole question, to be repeated as it is.
    body: str


class Held:
    """The right to do one operation, until the lease ends. In a `with` statement it is renewed in the background."""

    def __init__(self, gateway: Gateway, claim: _Claim, answer: dict[str, Any] | None, sent: float):
        self._gateway, self._claim, self._answer = gateway, claim, answer or {}
        self._settled = False
        self._stop = threading.Event()
        self._ends = sent + self._answer.get("lease_ms", 0) / 1000
        self._renewing: threading.Thread | None = None
        #: Why the claim was lost, once a renewal was told so: `lease_lost`, `superseded`, or `not_renewed` in time.
        self.lost: str | None = None
        #: Rises with every attempt at the operation; for the resource to compare. None where the store has none.
        self.fence: int | None = self._answer.get("fence")
        #: The policy that granted in the store's place; `caller` if none was asked.
        self.degraded: str | None = self._answer.get("degraded") if answer else "caller"
        #: True if a repeat of the question found the claim that it had already been given.
        self.repeated: bool = self._answer.get("repeated", False)

    @property
    def is_ours(self) -> bool:
        """Whether to go ahead with what cannot be undone. It narrows the gap after a pause; only the fence closes it."""
        return self.degraded == "caller" or (self.lost is None and time.monotonic() < self._ends)

    def succeed(self, result: Any = None) -> Done:
        """It is finished and must never run again, also if the answer is "declined". Repeats are told `result`."""
        answer = self._settle("success", result)
        degraded = self.degraded or answer.get("degraded")
        return Done(result, answer.get("state"), degraded, answer.get("late"))

    def fail(self) -> None:
        """It certainly did not happen."""
        self._settle("failure", None)

    def give_up(self) -> None:
        """Nobody knows whether it happened. Repeats are stopped until somebody has looked."""
        self._settle("unknown", None)

    def __enter__(self) -> Held:
        if self._answer:
            self._renewing = threading.Thread(target=self._renew, name="oncegate-renewal", daemon=True)
            self._renewing.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            if not self._settled and kind is not None and issubclass(kind, NothingHappened):
                self.fail()
            elif not self._settled:
                self.give_up()
        except (NotSettled, OutcomeRefused, Rejected) as refused:
            # What the work raised says more; this is kept with it.
            if error is None:
                raise
            error.add_note(str(refused))
        finally:
            self._stop.set()

    def _settle(self, outcome: str, result: Any) -> dict[str, Any]:
        target = self._answer
        if not target:
            # Nobody was asked before. Perhaps somebody answers now: then repeats are stopped at least from here on.
            try:
                late = self._gateway._claim(self._claim, self._gateway._timeout)
            except (Unavailable, Rejected):
                late = None
            if not isinstance(late, Held):
                self._settled = True
                return {"late": late is not None}
            target = late._answer
        # Operation and contents matter if it comes late: they tell its terms, and let its contents be compared.
        fields = {"attempt": target["attempt"], "outcome": outcome, "operation": self._claim.operation, "result": result}
        report = json.dumps([target["global_id"], _body(fields, self._claim.contents)])
        try:
            answer = self._gateway.settle(report, within=self._gateway._settle_within, result=result)
        except (NotSettled, OutcomeRefused):
            self._settled = True
            raise
        self._settled = True
        return answer

    def _renew(self) -> None:
        """At a third of the lease, so that a lost answer leaves time to ask again; until the lease is over by our own count."""
        # One that is observed only holds nothing that could be renewed.
        if "would_be" in self._answer:
            return
        path = f"/v1/claims/{self._answer['global_id']}/renewal"
        body = json.dumps({"attempt": self._answer["attempt"]})
        while (left := self._ends - time.monotonic()) > 0 and not self._stop.wait(left / 3):
            try:
                status, answer, sent = self._gateway._ask(path, body, self._ends - time.monotonic())
            except (Unavailable, Rejected):
                continue
            if status == 200:
                self._ends = sent + answer["lease_ms"] / 1000
            else:
                self.lost = self.lost if self._stop.is_set() else answer.get("code")
                return
        if not self._stop.is_set():
            self.lost = "not_renewed"


def _body(fields: dict[str, Any], contents: str) -> str:
    """JSON of what is there, with contents that are spelled already."""
    head = json.dumps({name: value for name, value in fields.items() if value is not None}, allow_nan=False)
    return f'{head[:-1]}, "contents": {contents}}}'


# The name of an operation. -------------------------------------------------------------------------------------------

DEPTH_MAX = 32


def global_id(app: str, operation: str, contents: Any) -> str:
    """MD5 of app key, operation and canonical contents, in hex: the same operation, the same ID, whoever computes it."""
    named = f"{app}\n{operation}\n{canonical(contents)}".encode()
    return hashlib.md5(named, usedforsecurity=False).hexdigest()


def canonical(contents: Any) -> str:
    """The one spelling of a value (RFC 8785). Raises `NotCanonical` where others would read something else.

    Numbers may be int, float or Decimal, and must be a double that keeps all their digits; send others as text.
    """
    if contents is None or contents == "":
        raise NotCanonical("contents must not be None or '': give what tells this operation from others")
    return _spelled(contents, 0)


def read_json(text: str) -> Any:
    """JSON text as contents, with nothing lost on the way: no digit of a number, no key that occurs twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise NotCanonical("a key occurs twice in its object")
        return dict(pairs)

    return json.loads(text, parse_float=Decimal, object_pairs_hook=once)


def _spelled(value: Any, depth: int) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float() | Decimal():
            return _number(value)
        case str():
            return _string(value)
    if depth == DEPTH_MAX:
        raise NotCanonical(f"nested deeper than {DEPTH_MAX} levels: send it as text")
    match value:
        case list() | tuple():
            return "[" + ",".join(_spelled(item, depth + 1) for item in value) + "]"
        case dict() if all(isinstance(key, str) for key in value):
            # By UTF-16 code units, as the RFC wants: not the order of Python's own strings.
            keys = sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))
            return "{" + ",".join(f"{_string(key)}:{_spelled(value[key], depth + 1)}" for key in keys) + "}"
    raise NotCanonical(f"{type(value).__name__} is no JSON: send it as text")


def _string(value: str) -> str:
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise NotCanonical("a text holds half of a surrogate pair")
    return json.dumps(value, ensure_ascii=False)


def _number(value: int | float | Decimal) -> str:
    """As ECMAScript writes the double, if that says the same as the value."""
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    double = float(exact)
    if not exact.is_finite() or double in (float("inf"), float("-inf")):
        raise NotCanonical("a number is larger than any double: send it as text")
    # By the value and by its double: each may round up to a bound that the other keeps.
    if 2**53 <= abs(exact) < 10**21 or 2**53 <= abs(double) < 1e21:
        raise NotCanonical("a number is beyond 2^53 - 1, where digits get lost: send it as text")
    if len("".join(map(str, exact.as_tuple().digits)).strip("0")) > 17:
        raise NotCanonical("a number has more than 17 significant digits: send it as text")
    if double == 0:
        if exact != 0:
            raise NotCanonical("a number is so small that it would become 0: send it as text")
        return "0"
    # The shortest digits that are this double: 0.d1d2d3... * 10^point.
    sign, shortest, exponent = Decimal(repr(double)).as_tuple()
    digits = "".join(map(str, shortest))
    point = len(digits) + int(exponent)
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        text = digits + "0" * (point - len(digits))
    elif 0 < point <= 21:
        text = f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        text = "0." + "0" * -point + digits
    else:
        fraction = f".{digits[1:]}" if digits[1:] else ""
        text = f"{digits[0]}{fraction}e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return "-" + text if sign else text
