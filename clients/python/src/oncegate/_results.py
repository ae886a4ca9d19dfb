"""Results of work as JSON, and back by their type: pydantic, dataclasses, attrs, decimals, times, UUIDs and enums."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import json
import types
import typing
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Union
from uuid import UUID

#: A longer result is not stored: the default of the gateway's `limits.result_bytes`.
RESULT_BYTES_MAX = 64 * 1024
_PLAIN = (str, int, float, bool, type(None), dict, list, object)
#: As text, in both directions.
_TEXTS: dict[type, Callable[[str], Any]] = {
    Decimal: Decimal,
    UUID: UUID,
    datetime: lambda text: datetime.fromisoformat(text.replace("Z", "+00:00")),
    date: date.fromisoformat,
    time: time.fromisoformat,
}
_ENDS_LATER = (
    collections.abc.Iterator,
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
    collections.abc.Generator,
    Future,
)


def encode(result: Any, serialize: Callable[[Any], Any] | None = None) -> tuple[str | None, str | None, str]:
    """The result as JSON, or a code and a text that say why it cannot be stored."""
    if result is None and serialize is None:
        return None, None, ""
    try:
        text = compact(result if serialize is None else serialize(result))
        size = len(text.encode())
    except Exception as error:  # A value's own methods may raise anything. The work is done, and its success is reported.
        return None, "not_serialisable", f"the result is not JSON: {error}"
    if size > RESULT_BYTES_MAX:
        return None, "too_large", f"the result has {size} bytes, more than {RESULT_BYTES_MAX}; return a key, not the whole record"
    return text, None, ""


def compact(value: Any) -> str:
    """JSON without spaces and escapes that it does not need: the gateway counts the bytes of a result. Half a surrogate pair has no
    UTF-8, and stays an escape."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_written)
    return text.encode(errors="backslashreplace").decode()


def _written(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(type(value), "__attrs_attrs__"):
        return {field.name: getattr(value, field.name) for field in type(value).__attrs_attrs__}
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form; return a dataclass, a pydantic model or a dict, or pass serialize=…")


def omitted(result: Any) -> str | None:
    """Why a result was not stored, if this is the marker that a client left for it."""
    if isinstance(result, dict) and result.keys() == {"$oncegate"} and isinstance(result["$oncegate"], dict):
        why = result["$oncegate"].get("omitted")
        return why if isinstance(why, str) else None
    return None


def marker(why: str) -> str:
    return json.dumps({"$oncegate": {"omitted": why}})


def ends_later(value: Any) -> bool:
    """Reports whether a result is unfinished when the work returns it. Then its end cannot be reported."""
    return isinstance(value, _ENDS_LATER) or inspect.isawaitable(value) or inspect.isasyncgen(value)


def return_type(function: Callable[..., Any]) -> Any:
    """The annotation of what a function returns; `Any` without one."""
    if not getattr(function, "__annotations__", None) and not hasattr(function, "__wrapped__"):
        return Any
    try:
        return typing.get_type_hints(function).get("return", Any)
    except Exception:  # Names that exist only while types are checked.
        return Any


def check_type(kind: Any) -> None:
    """Raises TypeError for a type whose values could not be stored and read back, or go on after the work has returned."""
    for part in _parts(kind):
        if isinstance(part, type) and issubclass(part, _ENDS_LATER):
            raise TypeError(f"the function returns {part.__name__}, whose end the client cannot see; return the finished result instead")
        if isinstance(part, type) and not _is_readable(part):
            advice = "return a dataclass, a pydantic model, a dict or a list, or pass serialize=… and deserialize=…"
            raise TypeError(f"the function returns {part.__name__}, which has no JSON form; {advice}")


def _parts(kind: Any) -> Iterator[Any]:
    yield typing.get_origin(kind) or kind
    for part in typing.get_args(kind):
        if not isinstance(part, (str, int, bool, bytes, enum.Enum)):
            yield from _parts(part)


def _is_readable(kind: type) -> bool:
    if kind in (*_PLAIN, *_TEXTS, timedelta, tuple) or kind.__module__ in ("typing", "types", "collections.abc"):
        return True
    is_record = dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__") or hasattr(kind, "model_validate")
    return is_record or typing.is_typeddict(kind) or issubclass(kind, (enum.Enum, dict, list, str, int, float))


def decode(value: Any, kind: Any) -> Any:
    """Reads JSON back as a value of this type. Raises if it is none."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is None or isinstance(kind, typing.TypeVar):
        return value
    if origin is typing.Annotated:
        return decode(value, arguments[0])
    if origin in (Union, types.UnionType):
        return _decode_union(value, arguments)
    if origin is typing.Literal:
        return value
    if origin in (list, collections.abc.Sequence):
        return [decode(each, arguments[0]) for each in value]
    if origin is tuple:
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(decode(each, one) for each, one in zip(value, kinds, strict=True))
    if origin in (dict, collections.abc.Mapping):
        return {_key(name, arguments[0]): decode(each, arguments[1]) for name, each in value.items()}
    return _decode_class(value, kind) if isinstance(kind, type) and origin is None else value


def _decode_class(value: Any, kind: type) -> Any:
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    if issubclass(kind, enum.Enum):
        return kind(value)
    if kind in _TEXTS:
        return _TEXTS[kind](value)
    if kind is timedelta:
        return timedelta(seconds=value)
    if kind is tuple:
        return tuple(value)
    if dataclasses.is_dataclass(kind):
        return _decode_record(value, kind, [field.name for field in dataclasses.fields(kind) if field.init])
    if hasattr(kind, "__attrs_attrs__"):
        return _decode_record(value, kind, [field.name for field in kind.__attrs_attrs__ if field.init])
    return value


def _decode_record(value: Any, kind: type, names: list[str]) -> Any:
    hints = typing.get_type_hints(kind)
    return kind(**{name.lstrip("_"): decode(value[name], hints.get(name, Any)) for name in names if name in value})


def _decode_union(value: Any, kinds: tuple[Any, ...]) -> Any:
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        if kind is not type(None):
            try:
                return decode(value, kind)
            except Exception:
                continue
    return value


def _key(name: str, kind: Any) -> Any:
    return kind(name) if kind in (int, float) else decode(name, kind)
