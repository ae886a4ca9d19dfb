"""The decisions of message consumers, by the vectors; and `consume_once`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from scripted import VECTORS, Script
from test_client import SECRET, scripted

from oncegate import (
    AsyncClient,
    Client,
    Done,
    Duplicate,
    Mismatch,
    NotCanonical,
    NothingHappened,
    NotSettled,
    OutcomeRefused,
    Rejected,
    Unavailable,
)
from oncegate.consumers import (
    Ack,
    ContentsNotDerived,
    DeadLetter,
    Decision,
    Park,
    Recipe,
    Redeliver,
    consume_once,
    consume_once_async,
    decide,
)

DECISIONS: list[dict[str, Any]] = json.loads((VECTORS / "decisions.json").read_text())["decisions"]
NAMES: dict[type[Any], str] = {Ack: "ack", Redeliver: "redeliver", Park: "park", DeadLetter: "dead_letter"}


def end_of(vector: dict[str, Any]) -> Any:
    end = vector["end"]
    if "done" in end:
        return Done(None, end["done"]["state"], None, end["done"].get("late", False), None, None, "")
    if "duplicate" in end:
        after = end["duplicate"].get("retry_after_ms", 1000) / 1000
        return Duplicate(end["duplicate"]["state"], None, after, None, None, True, None, "")
    if "mismatch" in end:
        return Mismatch(end["mismatch"]["code"], "")
    problem = {name: value for name, value in end.items() if name == "retry_after_ms"}
    return {
        "not_canonical": NotCanonical("float", "$", ""),
        "contents_not_derived": ContentsNotDerived(),
        "rejected": Rejected(end.get("status", 0), problem),
        "unavailable": Unavailable([]),
        "nothing_happened": NothingHappened(),
        "work": RuntimeError(),
        "outcome_refused": OutcomeRefused(end.get("code", "")),
        "not_settled": NotSettled("", None, Unavailable([])),
    }[end["error"]]


@pytest.mark.parametrize("vector", DECISIONS, ids=json.dumps)
def test_decision(vector: dict[str, Any]) -> None:
    failures = vector.get("failures", 0)
    decision = decide(end_of(vector), failures=failures, max_failures=3, report_is_kept=vector.get("report_is_kept", False))
    assert NAMES[type(decision)] == vector["decision"]
    if isinstance(decision, Redeliver):
        expected = vector["delay_ms"]
        assert decision.after == (5.0 if expected is None else expected / 1000)
        counted = vector["end"].get("error") == "nothing_happened"
        assert decision.failures == failures + counted


GRANTED: list[dict[str, Any]] = [{"expect": "claim", "answer": "granted"}]


def recipe(script: Script, handle: Any, **more: Any) -> Recipe[Any]:
    return Recipe(Client(script.urls, SECRET, settle_within=5), "order.submit", lambda message: message, handle, **more)


def consumed(exchanges: list[dict[str, Any]], handle: Any, message: Any = None, **more: Any) -> Decision:
    with scripted(exchanges) as script:
        decision = consume_once(recipe(script, handle, **more), message or {"order_id": "A-1001"})
        assert not script.faults
        return decision


def test_a_message_is_handled_once_and_acknowledged() -> None:
    assert consumed([*GRANTED, {"expect": "success", "answer": "succeeded"}], lambda *_: {"order_number": 7}) == Ack()


def test_an_error_of_the_handler_parks_the_message() -> None:
    def handle(*_: Any) -> None:
        raise RuntimeError("the bank timed out")

    assert isinstance(consumed([*GRANTED, {"expect": "unknown", "answer": "unknown"}], handle), Park)


def test_contents_that_cannot_be_derived_are_a_dead_letter() -> None:
    assert isinstance(consumed([], lambda *_: None, message={"order_id": None}), DeadLetter)
    with scripted([]) as script:
        broken: Recipe[Any] = Recipe(Client(script.urls), "order.submit", lambda message: message["missing"], lambda *_: None)
        assert isinstance(consume_once(broken, {}), DeadLetter)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_report_that_is_not_accepted_is_kept_or_the_message_comes_again(keeps: bool) -> None:
    kept: list[str] = []
    problem = {"use": "problem", "status": 503, "body": {"code": "store_unavailable", "retry_after_ms": 60000}}
    exchanges = [*GRANTED, {"expect": "success", "answer": problem}]
    decision = consumed(exchanges, lambda *_: {"order_number": 7}, keep_report=kept.append if keeps else None)
    assert isinstance(decision, Ack if keeps else Redeliver)
    assert len(kept) == keeps


def test_the_same_for_asyncio() -> None:
    async def handle(*_: Any) -> dict[str, int]:
        return {"order_number": 7}

    async def run(script: Script) -> Decision:
        async with AsyncClient(script.urls, SECRET) as client:
            return await consume_once_async(Recipe(client, "order.submit", lambda message: message, handle), {"order_id": "A-1001"})

    with scripted([*GRANTED, {"expect": "success", "answer": "succeeded"}]) as script:
        assert asyncio.run(run(script)) == Ack()


def test_a_wrong_recipe_fails_when_it_is_made() -> None:
    client = Client(["http://127.0.0.1:1"])

    async def handle(*_: Any) -> None: ...

    with pytest.raises(TypeError, match="only AsyncClient"):
        Recipe(client, "a", str, handle)
    with pytest.raises(ValueError, match="max_failures"):
        Recipe(client, "a", str, print, max_failures=0)
    with pytest.raises(ValueError, match=r"order\.submit"):
        Recipe(client, "not an operation", str, print)
