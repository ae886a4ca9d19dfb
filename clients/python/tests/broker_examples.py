"""Runs the example of a consumer in examples/brokers, against the broker and the gateway of the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from servers import CREDENTIAL

FOLDER = Path(__file__).resolve().parents[3] / "examples/brokers"
FILES = {"redis": "redis_streams.py", "rabbitmq": "rabbitmq.py", "celery": "celery_task.py", "nats": "jetstream.py", "kafka": "kafka.py"}
EXPECTED = ["paid", "handled 2 messages"]


def run(consumer: str, broker: str, gateway: str) -> bool:
    """Returns true if the example sends two messages and has one effect; else prints its output."""
    if consumer not in FILES:
        return True
    env = {**os.environ, "BROKER_URL": broker, "ONCEGATE_URL": gateway, "ONCEGATE_CREDENTIAL": CREDENTIAL}
    command = [sys.executable, "-B", str(FOLDER / FILES[consumer])]
    try:
        ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired as timeout:
        print(f"{FILES[consumer]}: not in time: {timeout.stdout!r} {timeout.stderr!r}", flush=True)
        return False
    # Celery says more.
    lines = [line for line in ended.stdout.splitlines() if line.startswith(("paid", "handled"))]
    if ended.returncode or lines != EXPECTED:
        print(f"{FILES[consumer]}: status {ended.returncode}\n{ended.stdout}{ended.stderr[-2000:]}", flush=True)
        return False
    return True
