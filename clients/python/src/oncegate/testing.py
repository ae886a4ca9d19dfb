"""A gateway in memory for the tests of your service: in process, without a port, with a clock that you move.

    gateway = MemoryGateway()
    service = Service(gateway.client())            # or: Client([gateway.url]), as the service makes it
    service.redeem("COUPON-1")
    assert [claim.state for claim in gateway.claims] == ["succeeded"]

pytest finds the fixture `oncegate`, which is one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any, Literal

from . import options
from ._in_process import GATEWAYS, Failure
from ._memory_claims import Answer, Claims, MemoryClaim, problem
from ._memory_locks import Locks
from .aio import AsyncClient
from .client import Client

_numbers = itertools.count(1)


class MemoryGateway:
    """A gateway in this process. Clients of both kinds use it by its `url`; safe for threads."""

    def __init__(self) -> None:
        self.url = f"http://memory-{next(_numbers)}.oncegate.invalid"
        self._ahead = 0.0
        self._lock = threading.Lock()
        self._claims = Claims(self.now)
        self._held = Locks(self.now)
        self._failures: list[Failure | Answer] = []
        self._unavailable = False
        GATEWAYS[self.url] = self

    def client(self, **more: Any) -> Client:
        """A client of this gateway, whose leases follow its clock."""
        made = Client([self.url], **more)
        made._core.clock = lambda: time.monotonic() + self._ahead
        return made

    def async_client(self, **more: Any) -> AsyncClient:
        """As `client`, for asyncio."""
        return AsyncClient.of(self.client(**more))

    @property
    def claims(self) -> list[MemoryClaim]:
        """The live claims, in the order in which they were claimed."""
        with self._lock:
            return [found for name in list(self._claims.by_id) if (found := self._claims.find(name)) is not None]

    def now(self) -> float:
        """Seconds since the epoch, by the clock of this gateway."""
        return time.time() + self._ahead

    def advance(self, duration: options.Duration) -> None:
        """Moves the clock: leases and retentions end."""
        with self._lock:
            self._ahead += options.seconds("duration", duration) or 0.0

    def fail_next(self, times: int = 1, how: Literal["refused", "timeout", "connection"] | int = 503) -> None:
        """Fails the next calls: with a status, or without an answer. A `timeout` is one after the call was done."""
        failure = problem(how, "store_unavailable", "The test asked for it.") if isinstance(how, int) else Failure(how)
        with self._lock:
            self._failures += [failure] * times

    @contextlib.contextmanager
    def unavailable(self) -> Iterator[None]:
        """Refuses every call, as a gateway that is down."""
        self._unavailable = True
        try:
            yield
        finally:
            self._unavailable = False

    def clear(self) -> None:
        """Forgets all claims and locks."""
        with self._lock:
            self._claims, self._held = Claims(self.now), Locks(self.now)

    def call(self, method: str, path: str, body: str | None, authorization: str | None) -> Generator[float, None, Answer | Failure]:
        """One call of a client. Yields the seconds to pause for while it waits."""
        given = json.loads(body) if body else {}
        app = authorization.removeprefix("Bearer ").rpartition(".")[0] if authorization else "default"
        with self._lock:
            failure = Failure("refused") if self._unavailable else self._failures.pop(0) if self._failures else None
        if failure is not None and not (isinstance(failure, Failure) and failure.kind == "timeout"):
            return failure
        wait = options.duration_in_seconds(given.get("wait"))
        begin = time.monotonic()
        while True:
            with self._lock:
                status, answer = self._answer(method, path, given, app)
            waited = time.monotonic() - begin
            if wait is not None:
                answer["waited_ms"] = int(waited * 1000)
            is_in_the_way = status == 409 and (answer.get("state") == "in_progress" or answer["code"] == "lock_held")
            if not is_in_the_way or waited >= (wait or 0.0):
                return (status, answer) if failure is None else failure
            yield 0.01

    def _answer(self, method: str, path: str, body: dict[str, Any], app: str) -> Answer:
        match (method, *path.split("/")[2:]):
            case ("POST", "claims"):
                return self._claims.claim(app, body)
            case ("POST", "claims", "batch"):
                return self._batch(body, lambda item: self._claims.claim(app, item))
            case ("POST", "outcomes", "batch"):
                return self._batch(body, lambda item: self._claims.settle(app, item["global_id"], item))
            case ("POST", "claims", global_id, "outcome"):
                return self._claims.settle(app, global_id, body)
            case ("POST", "claims", global_id, "renewal"):
                return self._claims.renew(global_id, body)
            case ("GET", "claims", global_id):
                return self._claims.lookup(global_id)
            case ("POST", "locks", name, "holds"):
                return self._held.acquire(name, body)
            case ("POST", "locks", name, "renewal"):
                return self._held.renew(name, body)
            case ("POST", "locks", name, "release"):
                return self._held.release(name, body)
            case ("GET", "locks", name):
                return self._held.lookup(name)
        return problem(404, "not_found", f"No operation: {method} {path}")

    def _batch(self, body: dict[str, Any], each: Any) -> Answer:
        items = []
        for item in body["items"]:
            status, answer = each(item)
            items.append({"status": status, **answer})
        return 200, {"items": items}


__all__ = ["MemoryClaim", "MemoryGateway"]
