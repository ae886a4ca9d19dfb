"""The gateway in memory: as a real one, and what tests ask of it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from oncegate import AsyncClient, ClaimItem, Client, Done, Duplicate, NotSettled, Unavailable
from oncegate.testing import MemoryGateway

Call = Callable[[str, str, Any], tuple[int, dict[str, Any]]]
#: Members that two gateways have in common.
COMPARED = ("code", "state", "repeated", "taken_over", "late", "result", "degraded", "mode", "holds", "operation", "contents", "waiting")


def real(method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['ONCEGATE_CREDENTIAL']}"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(os.environ["ONCEGATE_URL"] + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def compared(status: int, body: dict[str, Any]) -> Any:
    if "items" in body:
        return status, [compared(item.get("status", 0), item) for item in body["items"]]
    holders = body.get("holders")
    count = len(holders) if isinstance(holders, list) else holders
    return status, {name: body[name] for name in COMPARED if body.get(name) is not None}, count


def scenario(call: Call) -> list[Any]:
    """Every transition of claims and locks, as the answers to a list of calls."""
    seen: list[Any] = []
    operation, lock = f"memory.{uuid4().hex}", f"memory:{uuid4().hex}"

    def do(method: str, path: str, body: Any = None) -> dict[str, Any]:
        status, answer = call(method, path, body)
        row = compared(status, answer)
        seen.append(json.loads(json.dumps(row).replace(operation, "OPERATION")))
        return answer

    def claim(number: int, **more: Any) -> dict[str, Any]:
        nonce = {"attempt_nonce": uuid4().hex}
        return do("POST", "/v1/claims", {"operation": operation, "contents": {"n": number}, **nonce, "lease": "30s", **more})

    def outcome(grant: dict[str, Any], outcome: str, number: int, **more: Any) -> None:
        path = f"/v1/claims/{grant['global_id']}/outcome"
        do("POST", path, {"attempt": grant["attempt"], "outcome": outcome, "operation": operation, "contents": {"n": number}, **more})

    nonce = uuid4().hex
    first = claim(1, attempt_nonce=nonce)
    claim(1, attempt_nonce=nonce)
    claim(1)
    claim(1, wait="50ms")
    claim(1, fingerprint={"a": 1})
    do("GET", f"/v1/claims/{first['global_id']}")
    do("POST", f"/v1/claims/{first['global_id']}/renewal", {"attempt": first["attempt"]})
    for said in ("success", "success", "failure", "unknown"):
        outcome(first, said, 1, **({"result": {"r": 1}} if said == "success" else {}))
    do("POST", f"/v1/claims/{first['global_id']}/renewal", {"attempt": first["attempt"]})
    claim(1)
    claim(1, take_over=True)
    do("GET", f"/v1/claims/{first['global_id']}")
    second = claim(2, fingerprint={"a": 1})
    claim(2, fingerprint={"a": 1})
    claim(2)
    outcome(second, "unknown", 2)
    claim(2, fingerprint={"a": 1})
    third = claim(2, fingerprint={"a": 1}, take_over=True)
    outcome(second, "success", 2)
    outcome(third, "failure", 2)
    do("GET", f"/v1/claims/{third['global_id']}")
    do("POST", f"/v1/claims/{third['global_id']}/renewal", {"attempt": third["attempt"]})
    outcome(third, "success", 2, result=3)
    claim(2)
    claim(3, lease="soon")
    items = [{"operation": operation, "contents": {"n": number}, "attempt_nonce": uuid4().hex} for number in (1, 7, 2)]
    batch = do("POST", "/v1/claims/batch", {"items": items})
    granted = batch["items"][1]
    settled = {"global_id": granted["global_id"], "attempt": granted["attempt"], "outcome": "success"}
    do("POST", "/v1/outcomes/batch", {"items": [{**settled, "operation": operation, "contents": {"n": 7}, "result": [1]}]})
    claim(7)

    def hold(mode: str = "exclusive", **more: Any) -> dict[str, Any]:
        return do("POST", f"/v1/locks/{lock}/holds", {"mode": mode, "attempt_nonce": uuid4().hex, "lease": "30s", **more})

    def release(**by: Any) -> None:
        do("POST", f"/v1/locks/{lock}/release", by)

    nonce = uuid4().hex
    held = hold(attempt_nonce=nonce)
    hold(attempt_nonce=nonce)
    hold()
    hold("shared")
    do("GET", f"/v1/locks/{lock}")
    do("POST", f"/v1/locks/{lock}/renewal", {"attempt": held["attempt"], "lease": "30s"})
    release(attempt=held["attempt"])
    release(attempt=held["attempt"])
    release(attempt_nonce=nonce)
    do("POST", f"/v1/locks/{lock}/renewal", {"attempt": held["attempt"]})
    do("GET", f"/v1/locks/{lock}")
    one, other = hold("shared", owner="a" * 16), hold("shared", owner="b" * 16)
    hold("shared", owner="a" * 16)
    hold("exclusive")
    hold("exclusive", owner="a" * 16)
    release(attempt=other["attempt"])
    hold("exclusive", owner="a" * 16)
    release(attempt=one["attempt"])
    do("GET", f"/v1/locks/{lock}")
    return seen


@pytest.mark.skipif("ONCEGATE_URL" not in os.environ, reason="no gateway: run it by scripts/with-gateway")
def test_it_answers_as_a_real_gateway() -> None:
    memory = MemoryGateway()

    def double(method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        call = memory.call(method, path, None if body is None else json.dumps(body), "Bearer shop.x")
        try:
            while True:
                time.sleep(next(call))
        except StopIteration as answered:
            return answered.value  # type: ignore[no-any-return]

    for number, (here, there) in enumerate(zip(scenario(double), scenario(real), strict=True)):
        assert here == there, number


def test_a_test_of_a_service(oncegate: MemoryGateway) -> None:
    client = Client()  # As the service makes it: by ONCEGATE_URL.
    answers = [client.once("coupon.redeem", {"coupon": "C-1"}, lambda _: {"discount": 5}) for _ in range(2)]
    assert [type(answer) for answer in answers] == [Done, Duplicate]
    assert answers[1].value() == {"discount": 5}
    assert [(claim.operation, claim.contents, claim.state, claim.result) for claim in oncegate.claims] == [
        ("coupon.redeem", {"coupon": "C-1"}, "succeeded", {"discount": 5})
    ]
    oncegate.clear()
    assert oncegate.claims == []


def test_its_clock_ends_leases_and_retentions(oncegate: MemoryGateway) -> None:
    client = oncegate.client()
    grant = client.claim("coupon.redeem", "C-1", lease="30s")
    assert grant.is_live  # type: ignore[union-attr]
    oncegate.advance("31s")
    assert not grant.is_live  # type: ignore[union-attr]
    assert isinstance(client.once("coupon.redeem", "C-1", lambda _: 1, retention="1h"), Done)
    assert isinstance(client.once("coupon.redeem", "C-1", lambda _: 1), Duplicate)
    oncegate.advance(3601)
    assert isinstance(client.once("coupon.redeem", "C-1", lambda _: 1), Done)
    client.claim("coupon.redeem", "C-2", lease="30s", on_lease_end="unknown")
    oncegate.advance(365 * 86400)
    found = client.once("coupon.redeem", "C-2", lambda _: 1)
    assert isinstance(found, Duplicate)
    assert found.state == "unknown"


def test_its_failures_are_those_of_a_gateway(oncegate: MemoryGateway) -> None:
    client, hasty = oncegate.client(), oncegate.client(claim_within=0.3, settle_within=0.3)
    oncegate.fail_next(2)
    oncegate.fail_next(how="timeout")
    assert isinstance(client.once("coupon.redeem", "C-1", lambda _: 1), Done)
    with oncegate.unavailable(), pytest.raises(Unavailable) as refused:
        hasty.once("coupon.redeem", "C-2", lambda _: 1)
    assert refused.value.causes[0].kind == "refused"
    grant = hasty.claim("coupon.redeem", "C-3")
    with oncegate.unavailable(), pytest.raises(NotSettled) as kept:
        grant.succeed(7)  # type: ignore[union-attr]
    assert client.settle(kept.value.report).state == "succeeded"
    assert client.once("coupon.redeem", "C-3", lambda _: 1).value() == 7


def test_threads_tasks_waits_locks_and_batches(oncegate: MemoryGateway) -> None:
    client, go = oncegate.client(), threading.Event()
    thread = threading.Thread(target=lambda: client.once("coupon.redeem", "C-1", lambda _: go.wait(10)))
    thread.start()
    while not oncegate.claims:
        pass
    threading.Timer(0.1, go.set).start()
    assert client.once("coupon.redeem", "C-1", lambda _: False, wait="10s").value() is True
    thread.join()
    with client.lock("stock:42") as hold:
        assert hold.fence == 1
        assert client.lock("stock:42").acquire() is None
    assert client.lock("stock:42").lookup() is None
    grants = client.claim_batch([ClaimItem("coupon.redeem", f"B-{number}") for number in range(3)])
    assert len(grants) == 3

    async def main() -> int:
        runs = 0
        one = oncegate.async_client()

        async def work(_: Any) -> int:
            nonlocal runs
            runs += 1
            await asyncio.sleep(0.01)
            return runs

        answers = await asyncio.gather(*(one.once("coupon.redeem", "C-9", work, wait="5s") for _ in range(10)))
        assert {answer.value() for answer in answers} == {1}
        async with AsyncClient([oncegate.url]).lock("stock:42"):
            pass
        return runs

    assert asyncio.run(main()) == 1


def test_the_middleware_of_a_flask_service(oncegate: MemoryGateway) -> None:
    from flask import Flask

    from oncegate.contrib import flask as contrib

    app, runs = Flask("shop"), []

    @app.post("/coupons/<code>")
    def redeem(code: str) -> tuple[str, int]:
        runs.append(code)
        return f"redeemed {code}", 201

    contrib.install(app, Client(), contrib.Rules(operation="shop.http", principal=contrib.shared_keys))
    responses = [app.test_client().post("/coupons/C-1", headers={"Idempotency-Key": "k-1"}) for _ in range(2)]
    assert [response.text for response in responses] == ["redeemed C-1"] * 2
    assert responses[1].headers["Idempotent-Replayed"] == "true"
    assert runs == ["C-1"]
    with oncegate.unavailable():
        assert app.test_client().post("/coupons/C-2", headers={"Idempotency-Key": "k-2"}).status_code == 503


def test_the_middleware_of_a_starlette_service(oncegate: MemoryGateway) -> None:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route
    from starlette.testclient import TestClient

    from oncegate.contrib import starlette as contrib

    async def redeem(request: Request) -> PlainTextResponse:
        return PlainTextResponse(uuid4().hex, 201)

    app = Starlette(routes=[Route("/", redeem, methods=["POST"])])
    contrib.install(app, AsyncClient(), contrib.Rules(operation="shop.http", principal=contrib.shared_keys))
    with TestClient(app) as service:
        assert len({service.post("/", headers={"Idempotency-Key": "k-1"}).text for _ in range(3)}) == 1


def test_a_scope_of_anyio_waits_for_the_report_without_turning(oncegate: MemoryGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    import anyio

    waits = 0
    wait = asyncio.wait

    async def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal waits
        waits += 1
        return await wait(*arguments, **options)

    async def main() -> None:
        client = oncegate.async_client()
        run = client._transport.run

        async def slow(flow: Any) -> Any:
            await asyncio.sleep(0.3)
            return await run(flow)

        async def work(_: Any) -> None:
            monkeypatch.setattr(client._transport, "run", slow)
            monkeypatch.setattr(asyncio, "wait", counted)
            scope.cancel()
            await anyio.sleep(60)

        with anyio.CancelScope() as scope:
            await client.once("coupon.redeem", "C-10", work)
        assert scope.cancelled_caught

    asyncio.run(main())
    assert [claim.state for claim in oncegate.claims] == ["unknown"]
    assert waits < 5


def test_a_grant_whose_answer_was_lost_is_given_back() -> None:
    gateway = MemoryGateway()
    client = gateway.client(timeout=0.2, claim_within=0.001)
    gateway.fail_next(how="timeout")
    with pytest.raises(Unavailable) as lost:
        client.once("order.submit", {"order_id": "A-1001"}, lambda _: pytest.fail("it ran"), on_lease_end="unknown")
    assert lost.value.may_have_acted
    for _ in range(1000):
        if not gateway.claims:
            break
        time.sleep(0.02)
    assert not gateway.claims
