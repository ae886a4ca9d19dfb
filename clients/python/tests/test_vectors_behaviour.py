"""The behaviour vectors, each with the blocking and the asyncio client."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from scripted import COMMON, VECTORS, Script
from typed import typed

import oncegate
from oncegate import AsyncClient, ClaimItem, Client, Event, NothingHappened

FILES = sorted(path for path in (VECTORS / "behaviour").glob("*.json") if path.stem != "common")
CASES = [pytest.param(case, id=f"{path.stem}: {case['name']}") for path in FILES for case in json.loads(path.read_text())["cases"]]
ERRORS: dict[type[BaseException], str] = {
    oncegate.Unavailable: "unavailable",
    oncegate.Rejected: "rejected",
    oncegate.OutcomeRefused: "outcome_refused",
    oncegate.NotSettled: "not_settled",
    oncegate.NotCanonical: "not_canonical",
    oncegate.NothingHappened: "nothing_happened",
    oncegate.LockNotAcquired: "lock_not_acquired",
    asyncio.CancelledError: "cancelled",
}
VALUES = {"done": oncegate.Done, "duplicate": oncegate.Duplicate, "mismatch": oncegate.Mismatch, "settled": oncegate.Settled}


class OfTheWork(Exception):
    """An error of the work itself."""


class Case:
    """One case at work: its script, its client's options, and what came of it."""

    def __init__(self, case: dict[str, Any]):
        options = {**COMMON["options"], **case.get("options", {})}
        self.script = Script(case, options["urls"])
        self.events: list[Event] = []
        self.runs = 0
        self.clock_steps = 0.0
        self.options = {
            "urls": self.script.urls,
            "credential": options["credential"],
            "timeout": options["timeout_ms"] / 1000,
            "claim_within": options["claim_within_ms"] / 1000,
            "settle_within": options["settle_within_ms"] / 1000,
            "on_unavailable": options["on_unavailable"],
            "on_event": self.events.append,
        }

    def steps(self, client: Any, grant: Any, call: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """The steps that need waiting, one by one; the last is what the work returns."""
        self.runs += 1
        for step in call.get("work", COMMON["work"]):
            ((name, value),) = step.items()
            if name == "sees":
                seen = {each: getattr(grant, each) for each in value}
                assert seen == value
            elif name == "wall_clock_steps_ms":
                self.clock_steps += value / 1000
            elif name == "monotonic_clock_steps_ms":
                real = client._core.clock
                client._core.clock = lambda real=real, value=value: real() + value / 1000
            elif name == "raises":
                raise NothingHappened("nothing happened") if value == "nothing_happened" else OfTheWork("who knows")
            elif name == "returns_unserialisable":
                yield "returns", object()
            elif name == "returns_text_of":
                yield "returns", "x" * value
            else:
                yield name, value

    def has_noted(self, call: dict[str, Any], count: int) -> bool:
        """Whether the client has noted so many events, if they matter. It may be a moment behind the server."""
        return "events" not in call or len(self.events) >= count

    def wait_noted(self, call: dict[str, Any], before: int) -> None:
        for _ in range(500):
            if self.has_noted(call, before + len(call.get("events", []))):
                break
            time.sleep(0.02)

    def check(self, client: Any, call: dict[str, Any], result: Any, error: BaseException | None, events: list[Event], runs: int) -> None:
        assert not self.script.faults, self.script.faults
        assert runs == call["runs"]
        self.compare(call["expected"], result, error)
        if "events" in call:
            expected = [{"name": event} if isinstance(event, str) else event for event in call["events"]]
            assert [event.name for event in events] == [event["name"] for event in expected]
            for event, wanted in zip(events, expected, strict=True):
                fields: dict[str, Any] = {name: value for name, value in wanted.items() if name != "name"}
                assert {name: event.fields[name] for name in fields} == fields

    def compare(self, expected: dict[str, Any], result: Any, error: BaseException | None) -> None:
        if "error" in expected:
            failed = result if error is None else error
            kind = expected["error"]
            if kind == "argument":
                assert isinstance(failed, (ValueError, TypeError))
            elif kind == "work":
                assert isinstance(failed, OfTheWork)
            else:
                assert ERRORS.get(type(failed)) == kind, repr(failed)
            for name, value in expected.items():
                if name == "causes":
                    self.causes(value, failed.causes)  # type: ignore[union-attr]
                elif name == "report":
                    assert json.loads(failed.report) == self.script.filled(value)  # type: ignore[union-attr]
                elif name == "cause":
                    assert failed is not None
                    self.compare(value, None, failed.__cause__)
                elif name == "retry_after_ms":
                    assert failed.retry_after == value / 1000  # type: ignore[union-attr]
                elif name != "error":
                    assert getattr(failed, name) == value
            return
        if error is not None:
            raise error
        ((kind, fields),) = expected.items()
        if kind == "batch":
            assert len(result) == len(fields)
            for each, one in zip(fields, result, strict=True):
                self.compare(each, one, None)
            return
        if fields is None:
            assert result is None
            return
        if kind in VALUES:
            assert isinstance(result, VALUES[kind]), result
        for name, value in fields.items():
            if name == "retry_after_ms":
                assert result.retry_after == value / 1000
            elif name == "result_omitted":
                assert (result.result_omitted is not None) == value
            else:
                actual = result[name] if isinstance(result, dict) else getattr(result, name)
                assert actual == value, name

    def causes(self, expected: list[dict[str, Any]], causes: list[oncegate.Cause]) -> None:
        assert [cause.kind for cause in causes] == [each["kind"] for each in expected]
        for cause, fields in zip(causes, expected, strict=True):
            assert cause.url == self.script.urls[fields["at"]]
            assert all(getattr(cause, name) == value for name, value in fields.items() if name != "at")


def of_lock(record: oncegate.LockRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    holders = [
        {"hash": each.hash, "mode": each.mode, "claimed_at": each.claimed_at, "lease_ms": round(each.lease * 1000)}
        for each in record.holders
    ]
    return {
        "held": record.held,
        "mode": record.mode,
        "limit": record.limit,
        "fence": record.fence,
        "waiting": record.waiting,
        "holders": holders,
    }


def run_blocking(case: Case, client: Client, call: dict[str, Any]) -> Any:
    ((what, arguments),) = typed(call.get("call", COMMON["call"])).items()

    def work(grant: Any) -> Any:
        for name, value in case.steps(client, grant, call):
            if name == "returns":
                return value
            if name == "wait_ms":
                time.sleep(value / 1000)
            elif name == "until_exchange":
                assert case.script.wait_answered(value)
                time.sleep(0.05)
                for _ in range(200):
                    if case.has_noted(call, value):
                        break
                    time.sleep(0.02)
            elif name == "until_lost":
                assert grant.lost_event.wait(10)
        raise AssertionError("the work has no end")

    if what == "once":
        arguments = dict(arguments)
        return client.once(arguments.pop("operation"), arguments.pop("contents"), work, **arguments)
    if what == "settle":
        return client.settle(json.dumps(arguments["report"]))
    if what == "lookup":
        return client.lookup(arguments["global_id"])
    if what == "claim_batch":
        return client.claim_batch([ClaimItem(**item) for item in arguments["items"]])
    if what == "lock_lookup":
        return of_lock(client.lock(**arguments).lookup())
    with client.lock(**arguments) as hold:
        return {"result": work(hold), "fence": hold.fence}


async def run_async(case: Case, client: AsyncClient, call: dict[str, Any]) -> Any:
    ((what, arguments),) = typed(call.get("call", COMMON["call"])).items()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    if "cancel_at_exchange" in call:

        def on_read(number: int) -> None:
            if number == call["cancel_at_exchange"]:
                loop.call_soon_threadsafe(task.cancel)

        case.script.on_read = on_read

    async def work(grant: Any) -> Any:
        for name, value in case.steps(client, grant, call):
            if name == "returns":
                return value
            if name == "wait_ms":
                await asyncio.sleep(value / 1000)
            elif name == "until_exchange":
                assert await asyncio.to_thread(case.script.wait_answered, value)
                await asyncio.sleep(0.05)
                for _ in range(200):
                    if case.has_noted(call, value):
                        break
                    await asyncio.sleep(0.02)
            elif name == "until_lost":
                await asyncio.wait_for(grant.lost_event.wait(), 10)
            elif name == "cancelled":
                task.cancel()
                await asyncio.sleep(10)
        raise AssertionError("the work has no end")

    if what == "once":
        arguments = dict(arguments)
        return await client.once(arguments.pop("operation"), arguments.pop("contents"), work, **arguments)
    if what == "settle":
        return await client.settle(json.dumps(arguments["report"]))
    if what == "lookup":
        return await client.lookup(arguments["global_id"])
    if what == "claim_batch":
        return await client.claim_batch([ClaimItem(**item) for item in arguments["items"]])
    if what == "lock_lookup":
        return of_lock(await client.lock(**arguments).lookup())
    async with client.lock(**arguments) as hold:
        return {"result": await work(hold), "fence": hold.fence}


@pytest.fixture
def prepared(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    one = Case(case)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + one.clock_steps)
    yield one
    one.script.close()


@pytest.mark.parametrize("case", CASES)
def test_blocking(case: dict[str, Any], prepared: Case) -> None:
    if "cancellation" in case.get("needs", []):
        pytest.skip("blocking calls have no cancellation; see test_interruption")
    client = Client(**prepared.options)
    for call in case["calls"]:
        before, runs = len(prepared.events), prepared.runs
        result, error = None, None
        try:
            result = run_blocking(prepared, client, call)
        except (AssertionError, AttributeError):
            raise
        except BaseException as raised:
            error = raised
        if call is case["calls"][-1]:
            # A grant is given back in the background.
            assert prepared.script.wait_answered(len(case["exchanges"]))
            prepared.wait_noted(call, before)
        prepared.check(client, call, result, error, prepared.events[before:], prepared.runs - runs)
    assert prepared.script.read == len(case["exchanges"])
    client.close()


@pytest.mark.parametrize("case", CASES)
def test_async(case: dict[str, Any], prepared: Case) -> None:
    async def run() -> None:
        client = AsyncClient(**prepared.options)
        for call in case["calls"]:
            before, runs = len(prepared.events), prepared.runs
            outcome = await asyncio.gather(run_async(prepared, client, call), return_exceptions=True)
            result = outcome[0]
            error = result if isinstance(result, BaseException) else None
            if isinstance(error, (AssertionError, AttributeError)):
                raise error
            # The rest of a cancelled call is done in the background.
            await client.aclose()
            prepared.check(client, call, None if error else result, error, prepared.events[before:], prepared.runs - runs)
        assert prepared.script.read == len(case["exchanges"])

    asyncio.run(run())


def test_no_thread_is_left_behind() -> None:
    """Renewals that ended leave at most the one thread that waits for the next ones."""
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("oncegate-renewal") == 0, names
