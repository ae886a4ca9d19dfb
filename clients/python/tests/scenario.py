"""The program that the tests run: the client of this folder in its own process, with options as `name=value`.

    scenario.py vectors FILE                              the vectors of the global ID, one line each
    scenario.py orders urls=A,B orders=5 workers=4 …      many workers at the same orders until each has an answer
    scenario.py one urls=A order=A-1 work=200 …           one try at one order

Each line it prints is an event: `effect ORDER` when the work is done, and then the answer of the client.
`returns=foreign`, `long` or `deep` makes the work return a value that is not JSON, is too long, or that gateways refuse.
"""

import json
import sys
import threading
import time
from typing import Any

import oncegate
from oncegate import Client, Done, Duplicate, Grant, JsonText, NothingHappened

OPERATION = "order.submit"
DEEP: list[Any] = []
for _ in range(200):
    DEEP = [DEEP]
RETURNS: dict[str | None, dict[str, Any]] = {
    None: {},
    "foreign": {"total": object()},
    "long": {"page": "x" * 70_000},
    "deep": {"tree": DEEP},
}
printing = threading.Lock()


def say(*words: object) -> None:
    """One line; what there is none of is `-`."""
    with printing:
        print(*("-" if word is None else word for word in words), flush=True)


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "vectors":
        return vectors(rest[0])
    settings = dict(word.split("=", 1) for word in rest)
    client = Client(
        settings["urls"].split(","),
        credential=settings.get("credential"),
        on_unavailable=settings.get("policy", "fail_closed"),  # type: ignore[arg-type]
        timeout=int(settings.get("timeout", 1000)) / 1000,
        claim_within=int(settings.get("claim_within", 5000)) / 1000,
        settle_within=int(settings.get("settle_within", 30000)) / 1000,
    )
    orders(client, settings) if what == "orders" else one(client, settings)


def orders(client: Client, settings: dict[str, str]) -> None:
    def worker() -> None:
        for at in range(int(settings["orders"])):
            order = f"A-{at}"
            while (answer := try_order(client, settings, order)) is not None:
                time.sleep(answer)

    workers = [threading.Thread(target=worker) for _ in range(int(settings["workers"]))]
    for each in workers:
        each.start()
    for each in workers:
        each.join()


def try_order(client: Client, settings: dict[str, str], order: str) -> float | None:
    """None once the order has an answer, else how long to wait."""
    try:
        answer = run(client, settings, order)
    except oncegate.Unavailable:
        return 0.05
    match answer:
        case Done(result=result):
            say("done", order, number(result))
        case Duplicate(state="succeeded", result=result):
            say("duplicate", order, number(result))
        case Duplicate(retry_after=retry_after):
            return min(retry_after, 0.1)
    return None


def one(client: Client, settings: dict[str, str]) -> None:
    order = settings["order"]
    try:
        answer = run(client, settings, order)
    except oncegate.Unavailable as unavailable:
        return say("unavailable", *(cause.kind for cause in unavailable.causes))
    except oncegate.Rejected as refused:
        return say("rejected", refused.status, refused.code)
    except oncegate.OutcomeRefused as refused:
        return say("refused", refused.code)
    except oncegate.NotSettled as unsettled:
        say("not_settled")
        # Kept somewhere, and given to a gateway later.
        report = unsettled.report
        return say("settled", client.settle(report, within=20.0).state)
    except NothingHappened:
        return say("raised", "failure")
    except RuntimeError:
        return say("raised", "unknown")
    match answer:
        case Done(result, state, degraded, late, _, omitted):
            if omitted:
                say("not_stored")
            say("done", order, number(result), state, degraded, "late" if late else "in_time")
        case Duplicate(state, result):
            say("duplicate", order, number(result), state)
        case mismatch:
            say("mismatch", mismatch.code)


def run(client: Client, settings: dict[str, str], order: str) -> oncegate.Answer[Any]:
    def work(grant: Grant) -> dict[str, Any]:
        say("granted", order, "repeated" if grant.repeated else "first", grant.degraded)
        time.sleep(int(settings.get("work", 0)) / 1000)
        if settings.get("fails") == "failure":
            raise NothingHappened("nothing happened")
        if settings.get("fails") == "unknown":
            raise RuntimeError("who knows")
        if not grant.is_live:
            say("lost", grant.lost)
        say("effect", order)
        return {"order_number": order} | RETURNS[settings.get("returns")]

    fingerprint = settings.get("fingerprint")
    return client.once(OPERATION, {"order_id": order}, work, lease=settings.get("lease"), fingerprint=fingerprint)


def number(result: Any) -> Any:
    return result and result["order_number"]


def vectors(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        table = json.load(file)
    for vector in table["accepted"]:
        contents = JsonText(vector["contents_json"])
        say("accepted", oncegate.global_id(vector["app_key"], vector["operation"], contents))
    for vector in table["refused"]:
        try:
            contents = JsonText(vector["contents_json"])
            say("accepted", oncegate.global_id("shop", "default", contents))
        except ValueError:
            say("refused")


if __name__ == "__main__":
    main()
