"""The gateway in memory gives the answers of the scripted gateway of the behaviour vectors."""

from __future__ import annotations

import json
from typing import Any

from scripted import COMMON, VECTORS, merged

from oncegate.testing import MemoryGateway

#: The calls of another caller that lead to an answer, and the answers that follow a first one, without a fault.
SEEDS: dict[str, list[str]] = {
    "granted": [],
    "duplicate_succeeded": ["claim", "success"],
    "in_progress": ["claim"],
    "duplicate_unknown": ["claim", "unknown"],
    "hold": [],
    "lock_held": ["acquire"],
}
FOLLOWS = ("succeeded", "released", "unknown", "renewed", "hold_released", "hold_renewed")
COMPARED = ("code", "state", "global_id", "late", "result", "repeated", "name", "mode", "holds")


class Caller:
    """Sends the requests of vectors with its nonce, and keeps its attempt."""

    def __init__(self, gateway: MemoryGateway, nonce: str):
        self.gateway, self.nonce, self.attempt = gateway, nonce * 32, ""

    def send(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        text = json.dumps(request["body"]) if "body" in request else None
        if text is not None:
            text = text.replace("1792488615123456-$nonce", self.attempt).replace("$nonce", self.nonce)
        call = self.gateway.call(request["method"], request["path"], text, COMMON["requests"]["claim"]["headers"]["authorization"])
        while True:
            try:
                next(call)
            except StopIteration as end:
                status, answer = end.value
                self.attempt = answer.get("attempt", self.attempt)
                return status, answer


def plain_request(named: Any) -> dict[str, Any] | None:
    """A request by its name, or one with another result."""
    if isinstance(named, str) or (set(named) <= {"use", "body"} and set(named.get("body", {})) == {"result"}):
        return merged(named, "requests")
    return None


def test_the_double_answers_as_the_gateway_of_the_vectors() -> None:
    answered = 0
    for path in sorted((VECTORS / "behaviour").glob("*.json")):
        for case in json.loads(path.read_text()).get("cases", []):
            gateway = MemoryGateway()
            caller = Caller(gateway, "a")
            for at, exchange in enumerate(case["exchanges"]):
                name, request = exchange["answer"], plain_request(exchange["expect"])
                if not isinstance(name, str) or request is None or name not in (FOLLOWS if at else SEEDS):
                    break
                wanted = merged(name, "answers")
                other = Caller(gateway, "b")
                for step in SEEDS[name] if at == 0 else []:
                    before = merged(step, "requests")
                    if step == "success":
                        before["body"] = {**before["body"], "result": wanted["body"]["result"]}
                    other.send(before)
                status, answer = caller.send(request)
                where = f"{path.stem}: {case['name']}: exchange {at + 1}"
                assert status == wanted["status"], f"{where}: {answer}"
                for member in COMPARED:
                    if member in wanted["body"]:
                        assert answer.get(member) == wanted["body"][member], f"{where}: {member}"
                answered += 1
    assert answered >= 50
