"""Code for a user's type checker: checked, never run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from typing_extensions import assert_type

from oncegate import AsyncClient, AsyncGrant, Client, Done, Duplicate, Grant, Mismatch, SettleItem, once
from oncegate.middleware import Rules, shared_keys

client = Client()
rules = Rules(operation="shop.http", principal=shared_keys, on_5xx="release", lease="30s", exchange_max=60)


@dataclass
class Redeemed:
    discount_cents: int


def work(grant: Grant) -> Redeemed:
    return Redeemed(500)


answer = client.once("coupon.redeem", {"coupon": "C-1"}, work, lease="30s", nothing_happened=KeyError)
assert_type(answer, Done[Redeemed] | Duplicate[Redeemed] | Mismatch)
assert_type(answer.value(), Redeemed)
if isinstance(answer, Duplicate) and answer.state == "in_progress":
    print(answer.retry_after)


@once(client, operation="coupon.redeem", contents=["coupon"])
def redeem(coupon: str, *, cents: int = 0) -> Redeemed:
    return Redeemed(cents)


assert_type(redeem("C-1", cents=5), Done[Redeemed] | Duplicate[Redeemed] | Mismatch)


async def main() -> None:
    async with AsyncClient() as asynchronous:

        @once(asynchronous, operation="coupon.redeem", contents=["coupon"])
        async def redeem_async(coupon: str) -> int:
            return 1

        async def of_the_grant(grant: AsyncGrant) -> str:
            return "done"

        assert_type(await redeem_async("C-1"), Done[int] | Duplicate[int] | Mismatch)
        assert_type((await asynchronous.once("coupon.redeem", "C-2", of_the_grant)).value(), str)


grant = client.claim("coupon.redeem", "C-3")
if isinstance(grant, Grant):
    client.settle_batch([SettleItem(grant, "success", 7)])
asyncio.run(main())
