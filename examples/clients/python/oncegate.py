"""A client for Oncegate in one file, to copy. Python 3.11 or later; standard library only.

    gateway = Gateway(["http://10.0.0.5:8080", "http://10.0.0.6:8080"], credential="shop.the_secret")
    answer = gateway.run_once("order.submit", {"order_id": "A-1001"}, lambda held: place(order, fence=held.fence))

`run_once` claims the operation, renews the claim while the work runs, and reports the outcome. A duplicate is an answer
(`Duplicate`), not an exception. What to do with each answer: docs/integration.md of the gateway.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import queue
import random
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

#: A longer result is not sent: the default of the gateway's `limits.result_bytes`.
RESULT_BYTES_MAX = 64 * 1024
#: Idle connections kept for each gateway, and for how long: less than the gateway's own limit, 75 seconds by default.
IDLE_CONNECTIONS_MAX = 8
IDLE_SECONDS_MAX = 50.0

# Answers and errors. -------------------------------------------------------------------------------------------------


@dataclass
class Done:
    """The work ran here, and its outcome was reported."""

    result: Any
    #: The state of the claim: `succeeded`, `spooled` (kept by one gateway, to be delivered), or None if nothing was recorded.
    state: str | None
    #: The outage policy that answered instead of the store, at the claim or at the outcome; duplicates may have been missed.
    #: `caller` is this client's own `proceed`.
    degraded: str | None
    #: True: the claim had ended before the outcome arrived, so another attempt may have run. None: not known.
    late: bool | None
    #: Why the result was not stored: it is not JSON, is too long, or was refused. The success itself was recorded; duplicates
    #: get None as their result. None if the result was stored.
    result_error: str | None = None


@dataclass
class Duplicate:
    """Another attempt is running or has completed the operation. `state` is `in_progress`, `succeeded` or `unknown`."""

    state: str
    #: The result stored with the success.
    result: Any
    #: Seconds until it is worth asking again, while it is in progress.
    retry_after: float
    degraded: str | None


@dataclass
class Mismatch:
    """The operation was claimed with another fingerprint, or with other contents of the same ID."""

    code: str


@dataclass(frozen=True)
class Cause:
    """Why a gateway gave no usable answer."""

    url: str
    #: `dns`, `refused`, `timeout`, `tls`, `connection` (it was closed or broke), `not_a_gateway` (something else answered: check
    #: the URL), or `answer` (the gateway answered 5xx).
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.url}: {self.kind}: {self.detail}"


class Unavailable(Exception):
    """No gateway gave an answer in time. The work was not started. `causes` holds the last failure of each gateway tried."""

    def __init__(self, causes: list[Cause]):
        super().__init__("no gateway answered: " + "; ".join(map(str, causes)))
        self.causes = causes


class Rejected(Exception):
    """A gateway refused the call: a mistake of the caller, or (429) its quota is used up."""

    def __init__(self, status: int, problem: dict[str, Any]):
        super().__init__(f"{status} {problem.get('code')}: {problem.get('detail')}")
        self.status, self.code = status, problem.get("code")


class NothingHappened(Exception):
    """Raised by the work: it failed and certainly had no effect. The operation can be claimed again at once."""


class OutcomeRefused(Exception):
    """The outcome was answered with 409. `superseded` after a success: perhaps done twice, so raise an alarm."""

    def __init__(self, code: str, result: Any):
        super().__init__(f"the outcome was refused: {code}")
        self.code, self.result = code, result


class NotSettled(Exception):
    """No gateway has taken the outcome; `__cause__` says why. `report` is text: keep it, and pass it to `Gateway.settle` later."""

    def __init__(self, report: str, result: Any, why: Exception):
        super().__init__(f"no gateway has taken the outcome yet: {why}")
        self.report, self.result = report, result


class NotCanonical(ValueError):
    """The contents would not mean the same to every reader."""


# The gateway. --------------------------------------------------------------------------------------------------------


class Gateway:
    """One or more gateways in front of the same store; any of them may answer. Safe to use from many threads.

    `on_unavailable` is the caller's own policy when no gateway answers: `fail_closed` raises `Unavailable`, `proceed` runs the
    work unprotected and says so. All times are in seconds. `timeout` limits one call and is longer than the gateways' deadline;
    `claim_within` limits all tries of one claim, `settle_within` those of one outcome (None: no limit).
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
        self._servers = [_Server(url) for url in urls]
        self._credential = credential
        self._proceeds = on_unavailable == "proceed"
        self._timeout, self._claim_within, self._settle_within = timeout, claim_within, settle_within
        # The gateway that answered last is called first, so that one that is down costs one timeout, not one for each call.
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
        """Runs `work` unless the operation is a duplicate, and reports the outcome. Duplicates get what `work` returns.

        If it raises `NothingHappened`, the operation can be claimed again at once. Any other exception may have come after the
        effect, so the outcome is `unknown`. Both are raised again.
        """
        answer = self.claim(
            operation, contents, fingerprint=fingerprint, lease=lease, retention=retention, take_over=take_over
        )
        if not isinstance(answer, Held):
            return answer
        with answer as held:
            if not held.is_ours:
                raise NothingHappened("the answer arrived after the lease had ended")
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
        """Claims the operation. Use a `Held` in a `with` statement, which renews it."""
        # Fresh for each try at the operation, the same for all repeats of this call: a claim whose answer was lost is then
        # recognised as ours.
        fields = {"operation": operation, "attempt_nonce": secrets.token_hex(16), "lease": lease, "retention": retention}
        fields |= {"fingerprint": fingerprint, "take_over": take_over or None}
        # In canonical form, so that contents that would be read differently elsewhere are refused here.
        text = canonical(contents)
        claim = _Claim(operation, text, _body(fields, contents=text))
        try:
            return self._claim(claim, self._claim_within)
        except Unavailable:
            if not self._proceeds:
                raise
            return Held(self, claim, None, 0.0)

    def settle(self, report: str, *, within: float | None = None, result: Any = None) -> dict[str, Any]:
        """Repeats a report until it is taken (200 or 202) or refused (409). Safe to repeat.

        A result that the gateway refuses is left out; the answer then holds the reason as `result_error`.
        """
        fields = json.loads(report)
        path = f"/v1/claims/{fields.pop('global_id')}/outcome"
        contents, stored = fields.pop("contents"), fields.pop("result")
        without: dict[str, Any] = {}
        while True:
            try:
                status, answer, _ = self._call(path, _body(fields, contents=contents, result=stored), within)
            except Unavailable as unavailable:
                raise NotSettled(report, result, unavailable) from unavailable
            except Rejected as rejected:
                if stored is None or rejected.status not in (400, 413, 422):
                    raise
                # The operation has succeeded whether or not its result can be stored.
                stored, without = None, {"result_error": str(rejected)}
                continue
            if status == 422:
                raise Rejected(status, answer)
            if status == 409:
                raise OutcomeRefused(answer.get("code", ""), result)
            return answer | without | ({"state": "spooled"} if status == 202 else {})

    def global_id(self, operation: str, contents: Any) -> str:
        """The global ID of this operation, computed without a gateway."""
        app = self._credential.rpartition(".")[0] if self._credential else "default"
        return global_id(app, operation, contents)

    def close(self) -> None:
        """Closes idle connections. The gateway can still be used."""
        for server in self._servers:
            server.close()

    def _claim(self, claim: _Claim, within: float) -> Held | Duplicate | Mismatch:
        status, answer, sent = self._call("/v1/claims", claim.body, within)
        if status == 201:
            return Held(self, claim, answer, sent)
        if status == 409:
            after = answer.get("retry_after_ms", 1000) / 1000
            return Duplicate(answer.get("state", ""), answer.get("result"), after, answer.get("degraded"))
        return Mismatch(answer.get("code", ""))

    def _call(self, path: str, body: str, within: float | None) -> tuple[int, dict[str, Any], float]:
        """Calls one gateway after the other until one has answered. Returns the answer, and when its request was sent."""
        headers = {"Content-Type": "application/json"}
        if self._credential:
            headers["Authorization"] = f"Bearer {self._credential}"
        ends = None if within is None else time.monotonic() + within
        causes: dict[str, Cause] = {}
        tries, resent = 0, False
        while True:
            at = (self._first + tries) % len(self._servers)
            server = self._servers[at]
            # The lease counts from here: the answer may take long.
            sent = time.monotonic()
            left = self._timeout if ends is None else min(self._timeout, max(ends - sent, 0.001))
            status, answer = server.post(path, body.encode(), headers, left)
            if status in (200, 201, 202, 409) or (status == 422 and str(answer.get("code")).endswith("_mismatch")):
                self._first = at
                return status, answer, sent
            if 400 <= status < 500 and status != 429:
                raise Rejected(status, answer)
            cause = answer if isinstance(answer, Cause) else _answered(server.url, status, answer)
            # A try that was cut short by `within` says nothing new.
            if cause.kind != "timeout" or left == self._timeout or server.url not in causes:
                causes[server.url] = cause
            if cause.kind == "connection" and not resent:
                # Most likely a kept connection that the gateway had closed. The same call may be sent again: the nonce or the
                # attempt in it is recognised.
                resent = True
                continue
            tries += 1
            pause = answer.get("retry_after_ms", 1000) / 1000 if status == 429 else 0.0
            if tries % len(self._servers) == 0:
                # Full jitter: callers that failed together do not come back together.
                pause = max(pause, random.uniform(0, min(1.0, 0.05 * 2 ** min(tries // len(self._servers), 10))))
            if ends is not None and time.monotonic() + pause >= ends:
                if status == 429:
                    raise Rejected(status, answer)
                raise Unavailable(list(causes.values()))
            time.sleep(pause)


class _Server:
    """One gateway, and the idle connections to it."""

    def __init__(self, url: str):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not the URL of a gateway: {url!r}; expected http://HOST:PORT or https://HOST:PORT")
        self.url = url
        self._type = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host, self._path = parts.netloc, parts.path.rstrip("/")
        self._idle: queue.LifoQueue[tuple[http.client.HTTPConnection, float]] = queue.LifoQueue(IDLE_CONNECTIONS_MAX)

    def post(self, path: str, body: bytes, headers: dict[str, str], timeout: float) -> tuple[int, dict[str, Any] | Cause]:
        """One call. Status 0 and the cause if there was no answer of a gateway: whether it acted on the call is not known."""
        ends = time.monotonic() + timeout
        connection = None
        try:
            connection = self._connection(timeout)
            connection.sock.settimeout(max(ends - time.monotonic(), 0.001))
            connection.request("POST", self._path + path, body, headers)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            if connection is not None:
                connection.close()
            cause = Cause(self.url, _kind(error), str(error) or type(error).__name__)
            if cause.kind == "connection":
                # The others are of the same age.
                self.close()
            return 0, cause
        if response.will_close:
            connection.close()
        else:
            self._keep(connection)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        wanted = "global_id" if response.status < 300 else "code"
        if isinstance(answer, dict) and isinstance(answer.get(wanted), str):
            return response.status, answer
        detail = f"answered {response.status}, {response.headers.get_content_type()}"
        return 0, Cause(self.url, "not_a_gateway", detail)

    def close(self) -> None:
        while True:
            try:
                self._idle.get_nowait()[0].close()
            except queue.Empty:
                return

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        """An idle connection, or a new one."""
        while True:
            try:
                connection, since = self._idle.get_nowait()
            except queue.Empty:
                connection = self._type(self._host, timeout=timeout)
                connection.connect()
                return connection
            if time.monotonic() - since < IDLE_SECONDS_MAX:
                return connection
            connection.close()

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        try:
            self._idle.put_nowait((connection, time.monotonic()))
        except queue.Full:
            connection.close()


def _kind(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "timeout"
        case ConnectionRefusedError():
            return "refused"
        case ssl.SSLError():
            return "tls"
        case socket.gaierror() | UnicodeError():
            return "dns"
    return "connection"


def _answered(url: str, status: int, answer: dict[str, Any]) -> Cause:
    return Cause(url, "answer", f"{status} {answer.get('code')}: {answer.get('detail')}")


@dataclass
class _Claim:
    operation: str
    #: The contents in canonical form.
    contents: str
    #: The whole request, to be repeated as it is.
    body: str


class Held:
    """The right to run one operation, until the lease ends. Renewed in the background while in a `with` statement."""

    def __init__(self, gateway: Gateway, claim: _Claim, answer: dict[str, Any] | None, sent: float):
        self._gateway, self._claim, self._answer = gateway, claim, answer or {}
        self._settled = False
        #: The outcome that is being reported: it is never replaced by another one.
        self._report: str | None = None
        self._stop = threading.Event()
        self._ends = sent + self._answer.get("lease_ms", 0) / 1000
        self._renewing: threading.Thread | None = None
        #: Why the claim was lost, by the answer to a renewal: `lease_lost`, `superseded`, or `not_renewed` in time.
        self.lost: str | None = None
        #: Rises with every attempt at the operation; for the resource to compare. None where the store has none.
        self.fence: int | None = self._answer.get("fence")
        #: The outage policy that granted the claim; `caller` if no gateway answered.
        self.degraded: str | None = self._answer.get("degraded") if answer else "caller"
        #: True if a repeat of the claim call found the claim that it had already been granted.
        self.repeated: bool = self._answer.get("repeated", False)

    @property
    def is_ours(self) -> bool:
        """Whether the claim still stands, to check before an effect that cannot be undone. Only the fence closes the gap."""
        return self.degraded == "caller" or (self.lost is None and time.monotonic() < self._ends)

    def succeed(self, result: Any = None) -> Done:
        """Reports that the work is finished and must never run again, also if the answer is "declined".

        Duplicates get `result`. If it cannot be sent, the success is reported without it: see `Done.result_error`.
        """
        text, error = _json(result)
        answer = self._settle("success", result, text)
        degraded = self.degraded or answer.get("degraded")
        return Done(result, answer.get("state"), degraded, answer.get("late"), error or answer.get("result_error"))

    def fail(self) -> None:
        """Reports that it certainly did not happen."""
        self._settle("failure")

    def give_up(self) -> None:
        """Reports that it is not known whether it happened. Repeats are stopped until an operator or a take-over settles it."""
        self._settle("unknown")

    def __enter__(self) -> Held:
        if self._answer:
            self._renewing = threading.Thread(target=self._renew, name="oncegate-renewal", daemon=True)
            self._renewing.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            if self._settled:
                pass
            elif self._report is not None:
                # Interrupted while the outcome was being reported.
                self._gateway.settle(self._report, within=self._gateway._settle_within)
            elif kind is not None and issubclass(kind, NothingHappened):
                self.fail()
            else:
                self.give_up()
        except (NotSettled, OutcomeRefused, Rejected) as refused:
            # The exception of the work says more; this one is added to it.
            if error is None:
                raise
            error.add_note(str(refused))
        finally:
            self._stop.set()

    def _settle(self, outcome: str, result: Any = None, text: str | None = None) -> dict[str, Any]:
        target = self._answer
        if not target:
            # Granted by this client's own policy. If a gateway answers now, repeats are stopped from here on.
            try:
                late = self._gateway._claim(self._claim, self._gateway._timeout)
            except (Unavailable, Rejected):
                late = None
            if not isinstance(late, Held):
                self._settled = True
                return {"late": late is not None}
            target = late._answer
        # Operation and contents matter if the outcome is late: its record then has their terms, and contents to compare.
        fields = {"global_id": target["global_id"], "attempt": target["attempt"], "outcome": outcome}
        fields |= {"operation": self._claim.operation, "contents": self._claim.contents, "result": text}
        self._report = json.dumps(fields)
        try:
            answer = self._gateway.settle(self._report, within=self._gateway._settle_within, result=result)
        except (NotSettled, OutcomeRefused):
            self._settled = True
            raise
        except Rejected as rejected:
            self._settled = True
            raise NotSettled(self._report, result, rejected) from rejected
        self._settled = True
        return answer

    def _renew(self) -> None:
        """Renews at a third of the lease, which leaves time to repeat a lost answer; stops when the lease has ended here."""
        # A claim that is only observed has nothing to renew.
        if "would_be" in self._answer:
            return
        path = f"/v1/claims/{self._answer['global_id']}/renewal"
        body = json.dumps({"attempt": self._answer["attempt"]})
        while (left := self._ends - time.monotonic()) > 0 and not self._stop.wait(left / 3):
            try:
                status, answer, sent = self._gateway._call(path, body, self._ends - time.monotonic())
            except (Unavailable, Rejected):
                continue
            if status == 200:
                self._ends = sent + answer["lease_ms"] / 1000
            else:
                self.lost = self.lost if self._stop.is_set() else answer.get("code")
                return
        if not self._stop.is_set():
            self.lost = "not_renewed"


def _json(result: Any) -> tuple[str | None, str | None]:
    """The result as JSON, or why it cannot be sent."""
    if result is None:
        return None, None
    try:
        text = json.dumps(result, allow_nan=False)
    except Exception as error:  # Whatever a value's own methods raise: the work is done, and its success is reported.
        return None, f"the result is not JSON: {error}"
    if len(text) > RESULT_BYTES_MAX:
        return None, f"the result has {len(text)} bytes, more than {RESULT_BYTES_MAX}"
    return text, None


def _body(fields: dict[str, Any], **encoded: str | None) -> str:
    """A JSON object of the fields that are not None, and of those that are encoded already."""
    members = [f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in fields.items() if value is not None]
    members += [f'"{name}": {text}' for name, text in encoded.items() if text is not None]
    return "{" + ", ".join(members) + "}"


# The name of an operation. -------------------------------------------------------------------------------------------

DEPTH_MAX = 32


def global_id(app: str, operation: str, contents: Any) -> str:
    """MD5 of app key, operation and canonical contents, in hex: the same operation, the same ID, in every language."""
    named = f"{app}\n{operation}\n{canonical(contents)}".encode()
    return hashlib.md5(named, usedforsecurity=False).hexdigest()


def canonical(contents: Any) -> str:
    """The one spelling of a value (RFC 8785). Raises `NotCanonical` where others would read something else.

    Numbers may be int, float or Decimal, and must be a double that keeps all their digits; send others as text.
    """
    spelled = _spelled(contents, 0)
    if not _holds_value(contents):
        raise NotCanonical("contents hold no value, only None, '', {} or []: give what tells this operation from others")
    return spelled


def read_json(text: str) -> Any:
    """JSON text as contents, with nothing lost on the way: no digit of a number, no key that occurs twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise NotCanonical("a key occurs twice in its object")
        return dict(pairs)

    return json.loads(text, parse_float=Decimal, object_pairs_hook=once)


def _holds_value(value: Any) -> bool:
    """Whether there is a number, a boolean or a string with a character in it: one unset id must not name every order."""
    match value:
        case dict():
            return any(map(_holds_value, value.values()))
        case list() | tuple():
            return any(map(_holds_value, value))
    return value is not None and value != ""


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
