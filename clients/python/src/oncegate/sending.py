"""Requests with an `Idempotency-Key`: one key for each operation, the same over all its tries, and when to try again.

`oncegate.contrib.requests` and `.httpx` follow these rules. The service understands the key, by the proxy, a middleware, or itself.
"""

from __future__ import annotations

import json
import random
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

from . import options

KEY = "Idempotency-Key"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT", "QUERY"})
#: A longer body is not read to learn why a request is refused.
PROBLEM_BYTES_MAX = 64 * 1024
#: Seconds for all tries of one operation, as the senders of all languages have it.
WITHIN = 60.0
#: Nothing happened, or the same key finds out what did.
_REPEATED = frozenset({408, 425, 429, 502, 503, 504})
_PAUSE_MIN, _PAUSE_MAX = 0.1, 5.0


@dataclass(frozen=True)
class SendingRules:
    """Limits of one operation: the time of all tries, and the bytes of a body that is kept for repeats."""

    within: float
    body_bytes: int

    @classmethod
    def of(cls, within: options.Duration, body_bytes: int) -> SendingRules:
        if isinstance(body_bytes, bool) or not isinstance(body_bytes, int) or body_bytes < 1:
            raise ValueError(f"body_bytes is a number of bytes from 1, got {body_bytes!r}")
        return cls(options.seconds("within", within) or 0.0, body_bytes)

    def operation(self) -> Operation:
        return Operation(time.monotonic() + self.within)

    def too_long(self) -> ValueError:
        return ValueError(f"a body of more than {self.body_bytes} bytes is not kept for repeats; pass bytes, or a larger body_bytes")


class Operation:
    """The tries of one operation."""

    def __init__(self, ends: float):
        self._ends = ends
        self._tries = 0

    def after_error(self) -> float | None:
        """The pause before the next try, after one that may have been lost; None: no more."""
        return self._within(0.0)

    def after(self, status: int, headers: Mapping[str, str], body: bytes | None) -> float | None:
        """The pause before the next try; None: this is the answer. `body` is that of a 409."""
        if status in _REPEATED or (status == 409 and is_in_progress(body)):
            return self._within(retry_after(headers.get("retry-after")) or 0.0)
        # An unknown outcome above all: look up the effect.
        return None

    def _within(self, asked: float) -> float | None:
        self._tries += 1
        # Full jitter: callers that failed together do not come back together.
        pause = max(asked, random.uniform(0, min(_PAUSE_MAX, _PAUSE_MIN * 2 ** min(self._tries, 10))))
        return pause if time.monotonic() + pause < self._ends else None


def fresh_key() -> str:
    return secrets.token_hex(16)


def asks_why(status: int, headers: Mapping[str, str]) -> bool:
    """Reports whether the body of a response says if it is worth repeating."""
    length = headers.get("content-length", "0")
    return status == 409 and length.isdigit() and int(length) <= PROBLEM_BYTES_MAX


def retry_after(text: str | None) -> float | None:
    """Seconds of a field with a number or a date."""
    if text is None:
        return None
    if text.strip().isascii() and text.strip().isdigit():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return max(0.0, (at - datetime.now(timezone.utc)).total_seconds()) if at.tzinfo else None


def is_in_progress(body: bytes | None) -> bool:
    """Reports whether a response says that the first request is still running."""
    try:
        said = json.loads(body or b"")
    except ValueError:
        return False
    if not isinstance(said, dict):
        return False
    error = said.get("error")
    # The second is that of Stripe, and of the proxy's dialect of it.
    return said.get("state") == "in_progress" or (isinstance(error, dict) and error.get("code") == "idempotency_key_in_use")
