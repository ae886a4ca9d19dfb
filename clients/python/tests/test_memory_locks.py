"""The table of the calls of locks, at the gateway in memory and at a real one."""

from __future__ import annotations

import json
import os
from typing import Any
from uuid import uuid4

import pytest
from scripted import VECTORS

from oncegate import Client, Hold, LockNotAcquired
from oncegate.testing import MemoryGateway

LOCKS: dict[str, Any] = json.loads((VECTORS / "locks.json").read_text())
TABLES = [pytest.param(table["steps"], id=table["name"]) for table in LOCKS["tables"]]


def terms_of(step: dict[str, Any]) -> dict[str, Any]:
    terms: dict[str, Any] = {name: step[name] for name in ("mode", "limit") if name in step}
    return {**terms, "owner": LOCKS["owner"]} if step.get("own") else terms


def run(client: Client, steps: list[dict[str, Any]]) -> None:
    name, fence = f"table:{uuid4().hex}", 0
    holds: dict[str, Hold] = {}
    for number, step in enumerate(steps):
        if "release" in step:
            holds.pop(step["release"]).release()
        elif "lookup" in step:
            record = client.lock(name).lookup()
            seen = record and {"mode": record.mode, "holders": len(record.holders), "limit": record.limit}
            assert seen == step["lookup"], number
        elif "refused" in step:
            with pytest.raises(LockNotAcquired) as refused, client.lock(name, **terms_of(step)):
                pass
            assert (refused.value.code, refused.value.limit) == (step["refused"], step.get("in_use")), number
        else:
            hold = client.lock(name, **terms_of(step)).acquire()
            assert hold is not None
            assert hold.fence is not None
            seen = {"mode": hold.mode, "holds": hold.holds, "fence": "new" if hold.fence > fence else "same"}
            assert seen == step["held"], number
            assert hold.fence >= fence, number
            holds[step["acquire"]], fence = hold, hold.fence


@pytest.mark.parametrize("steps", TABLES)
def test_in_memory(steps: list[dict[str, Any]]) -> None:
    run(MemoryGateway().client(), steps)


@pytest.mark.skipif("ONCEGATE_URL" not in os.environ, reason="no gateway: run it by scripts/with-gateway")
@pytest.mark.parametrize("steps", TABLES)
def test_at_a_gateway(steps: list[dict[str, Any]]) -> None:
    with Client([os.environ["ONCEGATE_URL"]], credential=os.environ["ONCEGATE_CREDENTIAL"], on_event=lambda event: None) as client:
        run(client, steps)


@pytest.mark.parametrize("wrong", LOCKS["wrong_limits"], ids=lambda wrong: f"{wrong['mode']} {wrong['limit']}")
def test_a_wrong_limit_is_refused_before_anything_is_sent(wrong: dict[str, Any]) -> None:
    gateway = MemoryGateway()
    for client in (gateway.client(), gateway.async_client()):
        with pytest.raises(ValueError, match="limit: ") as refused:
            client.lock("stock:42", mode=wrong["mode"], limit=wrong["limit"])
        assert wrong["says"] in str(refused.value)


@pytest.mark.parametrize("limit", [True, 2.5, "3"])
def test_a_limit_that_is_no_number_of_holds_is_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match="from 2 to 1000"):
        MemoryGateway().client().lock("stock:42", mode="shared", limit=limit)
