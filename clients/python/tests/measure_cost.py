"""Usage: scripts/with-gateway python clients/python/tests/measure_cost.py

Measures the CPU of `once` around an empty function as a ratio to the same two calls by `http.client`, in one run, with 1 and 64 threads.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from oncegate import Client

CALLS, ROUNDS = 1280, 4
URL, CREDENTIAL = os.environ["ONCEGATE_URL"], os.environ["ONCEGATE_CREDENTIAL"]
HEADERS = {"Content-Type": "application/json", "Authorization": f"Bearer {CREDENTIAL}"}
numbers = itertools.count(time.time_ns() % 10**12)
connections = threading.local()
client = Client([URL], CREDENTIAL)


def post(path: str, body: dict[str, Any]) -> Any:
    if not hasattr(connections, "kept"):
        parts = urlsplit(URL)
        connections.kept = http.client.HTTPConnection(parts.hostname or "", parts.port)
        connections.kept.connect()
        connections.kept.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connections.kept.request("POST", path, json.dumps(body), HEADERS)
    return json.loads(connections.kept.getresponse().read())


def by_hand(number: int) -> None:
    contents = {"operation": "cost", "contents": {"n": number}}
    grant = post("/v1/claims", {**contents, "attempt_nonce": secrets.token_hex(16)})
    report = {**contents, "attempt": grant["attempt"], "outcome": "success", "result": {"a": 1}}
    post(f"/v1/claims/{grant['global_id']}/outcome", report)


def by_once(number: int) -> None:
    client.once("cost", {"n": number}, lambda _: {"a": 1})


def milliseconds(call: Callable[[int], None], threads: int) -> float:
    """CPU of one operation."""

    def work() -> None:
        for _ in range(CALLS // threads):
            call(next(numbers))

    started = [threading.Thread(target=work) for _ in range(threads)]
    begin = time.process_time()
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return (time.process_time() - begin) / CALLS * 1000


def main() -> None:
    for threads in (1, 64):
        rounds = [(milliseconds(by_hand, threads), milliseconds(by_once, threads)) for _ in range(ROUNDS)]
        hand, once = (min(each) for each in zip(*rounds, strict=True))
        print(f"{threads} threads: by hand {hand:.3f} ms, once {once:.3f} ms, ratio {once / hand:.2f}")


if __name__ == "__main__":
    main()
