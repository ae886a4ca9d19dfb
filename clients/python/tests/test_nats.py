"""Copies that the consumer of NATS JetStream makes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from oncegate import AsyncClient
from oncegate.consumers import Recipe
from oncegate.consumers.nats import NatsConsumer


def test_a_copy_is_stored_before_the_acknowledgement_without_the_headers_of_the_server() -> None:
    log: list[Any] = []

    async def publish(subject: str, _: bytes, headers: dict[str, str]) -> None:
        log.append((subject, sorted(headers)))

    async def ack_sync() -> None:
        log.append("ack")

    async def handle(*_: Any) -> None: ...

    headers = {"Nats-Msg-Id": "m-1", "Nats-Expected-Stream": "PAYOUTS", "Nats-TTL": "1s", "Tenant": "one"}
    message: Any = SimpleNamespace(data=b"", subject="payouts", headers=headers, ack_sync=ack_sync)

    async def run() -> None:
        recipe: Recipe[Any] = Recipe(AsyncClient(["http://127.0.0.1:1"]), "payout.send", lambda message: message.data["payout"], handle)
        await NatsConsumer(recipe, SimpleNamespace(publish=publish), parked="aside.parked", dead="aside.dead").on_message(message)

    asyncio.run(run())
    assert log == [("aside.dead", ["Oncegate-Why", "Tenant"]), "ack"]
