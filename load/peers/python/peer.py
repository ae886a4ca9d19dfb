"""The decision in Python: `SET NX` with redis-py, or `once` of the client. See ../README.md."""

import asyncio
import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable

import redis.asyncio as redis
from oncegate import AsyncClient, AsyncGrant, Done

KEPT_MS = 300_000
SAMPLE = 200
RUN = uuid.uuid4().hex[:8]


def bare(client: "redis.Redis") -> Callable[[int], Awaitable[bool]]:
    async def claim(order: int) -> bool:
        key = f"og:{{{RUN}{order:024x}}}:load"
        value = f'1767225600000000-{order:016x} 1p l=306s r=306s o=load.unique c={{"order":"{RUN}-{order}"}}'
        return await client.set(key, value, nx=True, get=True, px=KEPT_MS) is None

    return claim


def ours(client: AsyncClient) -> Callable[[int], Awaitable[bool]]:
    async def nothing(grant: AsyncGrant) -> None:
        pass

    async def claim(order: int) -> bool:
        terms = {"lease": "5m", "retention": "5m"}
        return isinstance(await client.once("load.unique", {"order": f"{RUN}-{order}"}, nothing, **terms), Done)

    return claim


async def measure(claim: Callable[[int], Awaitable[bool]], callers: int, warm_up: float, seconds: float) -> None:
    begins = time.monotonic() + warm_up
    ends = begins + seconds
    next_order = 0
    answers: Counter[bool] = Counter()

    async def call() -> None:
        nonlocal next_order
        while (now := time.monotonic()) < ends:
            order, next_order = next_order, next_order + 1
            granted = await claim(order)
            if now >= begins:
                answers[granted] += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(callers):
            tasks.create_task(call())
        await asyncio.sleep(warm_up)
        print("begin", flush=True)
    print("end", answers[True], answers[False], flush=True)
    step = max(next_order // SAMPLE, 1)
    again = [await claim(order) for order in range(0, next_order, step)]
    print("repeated", len(again), sum(again), flush=True)


async def main() -> None:
    callers, warm_up, seconds = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    if url := os.environ.get("REDIS_URL"):
        async with redis.Redis.from_url(url, max_connections=callers) as client:
            await measure(bare(client), callers, warm_up, seconds)
    else:
        async with AsyncClient(credential=os.environ["ONCEGATE_CREDENTIAL"]) as client:
            await measure(ours(client), callers, warm_up, seconds)
    sys.stdin.read()


asyncio.run(main())
