"""A grant of another operation than the one that was claimed is given back before anything runs, on every way in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from scripted import COMMON, Script

from oncegate import AsyncClient, ClaimItem, Client, Rejected, Unavailable

SECRET = "shop.c2VjcmV0X29mX3RoZV92ZWN0b3Jz"
CONTENTS = {"order_id": "A-1001"}
#: `order.submit` of A-1001 in the app `default`, as an open gateway computes it.
OTHER = Client(["http://a:1"]).global_id("order.submit", CONTENTS)


def granted(batch: bool, **more: Any) -> dict[str, Any]:
    body = {**COMMON["answers"]["granted"]["body"], "global_id": OTHER, "attempt": "7-a", **more}
    return {"status": 200, "body": {"items": [{**body, "status": 201}]}} if batch else {"status": 201, "body": body}


def script(batch: bool) -> Script:
    """A gateway that grants another ID, and expects that its grant is given back by that ID."""
    path = f"/v1/claims/{OTHER}/outcome"
    report = {"attempt": "7-a", "outcome": "failure", "operation": "order.submit", "contents": CONTENTS}
    claim = {"method": "POST", "path": "/v1/claims/batch" if batch else "/v1/claims", "body": "$claim"}
    return Script(
        {
            "exchanges": [
                {"expect": {**claim, "body": None}, "answer": granted(batch)},
                {"expect": {"method": "POST", "path": path, "body": report}, "answer": "released"},
            ]
        },
        ["script"],
    )


def blocking(use: Callable[[Client], Any]) -> Callable[[list[str]], Any]:
    return lambda urls: use(Client(urls, SECRET, claim_within=1.0))


def asynchronous(use: Callable[[AsyncClient], Any]) -> Callable[[list[str]], Any]:
    async def run(urls: list[str]) -> Any:
        async with AsyncClient(urls, SECRET, claim_within=1.0) as client:
            return await use(client)

    return lambda urls: asyncio.run(run(urls))


def ran(_: Any) -> None:
    pytest.fail("the work has run")


async def ran_async(_: Any) -> None:
    pytest.fail("the work has run")


ITEM = [ClaimItem("order.submit", CONTENTS)]
WAYS = {
    "once": blocking(lambda client: client.once("order.submit", CONTENTS, ran)),
    "claim": blocking(lambda client: client.claim("order.submit", CONTENTS)),
    "async once": asynchronous(lambda client: client.once("order.submit", CONTENTS, ran_async)),
    "async claim": asynchronous(lambda client: client.claim("order.submit", CONTENTS)),
    "batch": blocking(lambda client: client.claim_batch(ITEM)),
    "async batch": asynchronous(lambda client: client.claim_batch(ITEM)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_grant_of_another_id_is_given_back_before_the_work(way: str) -> None:
    server = script("batch" in way)
    server.exchanges[0]["expect"].pop("body")
    server._differs = _ignoring_absent(server)  # type: ignore[method-assign, assignment]
    try:
        result = WAYS[way](server.urls)[0]
    except Rejected as rejected:
        result = rejected
    assert server.wait_answered(2)
    server.close()
    assert not server.faults, server.faults
    assert isinstance(result, Rejected), result
    assert result.code == "identity_differs"
    assert "without one" in str(result.detail)


def _ignoring_absent(server: Script) -> Callable[[dict[str, Any], dict[str, Any]], str | None]:
    """The claim has a fresh nonce: only what is expected of it is compared."""
    compare = Script._differs

    def differs(expected: dict[str, Any], request: dict[str, Any]) -> str | None:
        return compare(server, {**expected, "body": expected.get("body", request["body"])}, request)

    return differs


@pytest.mark.parametrize(("waited", "is_live"), [(0, False), (300, True)])
def test_the_lease_of_a_grant_that_waited_begins_when_the_wait_ends(waited: int, is_live: bool) -> None:
    """A lease of 200 ms that arrives 300 ms after the request was sent."""
    body = COMMON["answers"]["granted"]["body"]
    shop = Client(["http://a:1"], SECRET).global_id("order.submit", CONTENTS)
    answer = {"status": 201, "delay_ms": 300, "body": {**body, "global_id": shop, "attempt": "7-a", "lease_ms": 200, "waited_ms": waited}}
    server = Script({"exchanges": [{"expect": {}, "answer": answer}, {"expect": {}, "answer": "released"}]}, ["script"])
    server._differs = lambda expected, request: None  # type: ignore[method-assign]
    client = Client(server.urls, SECRET, claim_within=0.5, timeout=10)
    try:
        if is_live:
            grant = client.claim("order.submit", CONTENTS, wait="1s")
            assert grant.fence == 41  # type: ignore[union-attr]
        else:
            with pytest.raises(Unavailable, match="too_late"):
                client.claim("order.submit", CONTENTS, wait="1s")
    finally:
        server.close()
