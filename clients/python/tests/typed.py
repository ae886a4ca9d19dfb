"""Typed values of the vectors as Python has them."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from oncegate import JsonText


class Thing:
    """An object whose names the language would derive."""

    def __init__(self, fields: dict[str, Any]):
        self.__dict__.update(fields)


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


READERS: dict[str, Any] = {
    "$int": int,
    "$decimal": Decimal,
    "$float": float,
    "$instant": _instant,
    "$local": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$uuid": UUID,
    "$json": JsonText,
    "$utf16": lambda units: bytes.fromhex(units).decode("utf-16-be", "surrogatepass"),
    "$bytes": bytes.fromhex,
    "$set": set,
    "$object": Thing,
    "$int_key": lambda key: {int(key): "a"},
}


def typed(value: Any) -> Any:
    if isinstance(value, list):
        return [typed(each) for each in value]
    if isinstance(value, dict):
        if len(value) == 1 and (name := next(iter(value))) in READERS:
            return READERS[name](value[name])
        return {name: typed(each) for name, each in value.items()}
    return value
