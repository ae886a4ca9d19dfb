"""Options and terms, checked where they are given: each error says what to write instead."""

from __future__ import annotations

import math
import os
import re
from datetime import timedelta
from typing import Any, Union
from urllib.parse import urlsplit

_OPERATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}\Z")
_LOCK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\Z")
_OWNER = re.compile(r"[A-Za-z0-9_-]{16,64}\Z")
_CREDENTIAL = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\.[A-Za-z0-9_]+\Z")
_DURATION = re.compile(r"([1-9][0-9]{0,8})(ms|s|m|h|d)\Z")
_GLOBAL_ID = re.compile(r"[0-9a-f]{32}\Z")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

#: Text such as `500ms`, `30s`, `24h`, a number of seconds, or a timedelta.
Duration = Union[str, float, timedelta]


def url(value: str) -> str:
    """The URL of a gateway, without a slash at its end."""
    expected = "expected http://HOST:PORT or https://HOST:PORT"
    if not isinstance(value, str):
        raise TypeError(f"the URL of a gateway is a str, got {type(value).__name__}; {expected}")
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"not the URL of a gateway: {value!r} ({error}); {expected}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(f"not the URL of a gateway: {value!r}; {expected}")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"the URL of a gateway holds no credential; pass credential='APP.SECRET'; {expected}")
    if parts.query or parts.fragment or not value.isprintable() or " " in value:
        raise ValueError(f"not the URL of a gateway: {value!r}, a query, fragment or space does not belong there; {expected}")
    return value.rstrip("/")


def credential(value: str | None) -> str | None:
    if value is not None and not (isinstance(value, str) and _CREDENTIAL.match(value)):
        raise ValueError("not a credential; expected '<app_key>.<secret>', as `oncegate app new` prints it")
    return value


def seconds(name: str, value: Duration | None, *, optional: bool = False) -> float | None:
    if value is None and optional:
        return None
    if isinstance(value, str) and _DURATION.match(value):
        return duration_seconds(value)
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number) or number <= 0:
        none = ", or None for no limit" if optional else ""
        raise ValueError(f"{name} is a number of seconds above 0{none}, such as {name}=2.5, or a text such as '2s'; got {value!r}")
    return float(number)


def operation(value: str) -> str:
    if not (isinstance(value, str) and _OPERATION.match(value)):
        raise ValueError(f"not an operation: {value!r}; expected up to 128 of A-Z a-z 0-9 . _ : / -, such as 'order.submit'")
    return value


def lock_name(value: str) -> str:
    if not (isinstance(value, str) and _LOCK.match(value)):
        raise ValueError(f"not the name of a lock: {value!r}; expected up to 128 of A-Z a-z 0-9 . _ : -, such as 'stock:42'")
    return value


def owner(value: str | None) -> str | None:
    if value is not None and not (isinstance(value, str) and _OWNER.match(value)):
        raise ValueError(f"not an owner: {value!r}; expected 16 to 64 of A-Z a-z 0-9 _ -, such as uuid4().hex")
    return value


def limit(value: int | None, mode: str) -> int | None:
    if value is None:
        return None
    if mode != "shared":
        raise ValueError("limit: only shared holds have a limit; pass mode='shared' with it")
    if isinstance(value, bool) or not isinstance(value, int) or not 2 <= value <= 1000:
        advice = "a limit is a number of holds from 2 to 1000, such as 4; for one, request the lock in mode exclusive"
        raise ValueError(f"limit: {advice}; got {value!r}")
    return value


def global_id(value: str) -> str:
    if not (isinstance(value, str) and _GLOBAL_ID.match(value)):
        raise ValueError(f"not a global ID: {value!r}; expected 32 hex digits, as `global_id(operation, contents)` returns")
    return value


def duration(name: str, value: Duration | None, *, forever: bool = False) -> str | None:
    """A duration as the gateway reads it."""
    if value is None or (forever and value == "forever"):
        return value  # type: ignore[return-value]
    given, number = value, value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, (int, float)) and not isinstance(number, bool) and math.isfinite(number):
        milliseconds = round(number * 1000)
        value = f"{milliseconds}ms" if milliseconds < 10**9 else f"{milliseconds // 1000}s"
    if not (isinstance(value, str) and _DURATION.match(value)):
        also = ", 'forever'" if forever else ""
        raise ValueError(f"{name} is a duration such as 30 (seconds), '500ms', '30s', '24h'{also} or a timedelta; got {given!r}")
    return value


def duration_seconds(value: str) -> float:
    match = _DURATION.match(value)
    assert match, "checked before"
    return int(match[1]) * _SECONDS[match[2]]


def duration_in_seconds(value: Duration | None) -> float | None:
    text = duration("duration", value)
    return None if text is None else duration_seconds(text)


def exceptions(name: str, value: Any) -> tuple[type[BaseException], ...]:
    """Classes of exceptions; one alone may stand without a list."""
    classes = (value,) if isinstance(value, type) else tuple(value or ())
    if not all(isinstance(each, type) and issubclass(each, BaseException) for each in classes):
        raise TypeError(f"{name} is a tuple of exception classes, such as {name}=(StockError,); got {value!r}")
    return classes


def disabled_by_environment() -> bool:
    """Returns true if `ONCEGATE_DISABLED` switches clients off: everything runs, nothing is claimed."""
    text = os.environ.get("ONCEGATE_DISABLED", "")
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("", "0", "false", "no", "off"):
        return False
    raise ValueError(f"ONCEGATE_DISABLED is {text[:40]!r}: write 1, true, yes or on to switch clients off, or 0, false, no or off")


def choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{name} is one of {', '.join(map(repr, choices))}; got {value!r}")
    return str(value)
