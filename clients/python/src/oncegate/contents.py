"""Contents in canonical form (RFC 8785), and the global ID. Values that others could read differently are refused."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import date, datetime, timezone
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any
from uuid import UUID

from .errors import NotCanonical

DEPTH_MAX = 32
DECIMAL_LENGTH_MAX = 128
_SIMPLE_NAME = re.compile(r"[A-Za-z0-9_]+\Z")
_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonText:
    """Contents that are JSON text already, read as the gateway reads them: numbers may have fractions."""

    def __init__(self, text: str):
        if not isinstance(text, str):
            raise TypeError(f"JsonText takes str, got {type(text).__name__}")
        self.text = text


class _Literal(str):
    """A number as JSON text."""


def global_id(app: str, operation: str, contents: Any) -> str:
    """MD5 of app key, operation and canonical contents, in hex: the same operation, the same ID, in every language."""
    return id_of(app, operation, canonical(contents))


def id_of(app: str, operation: str, canonical_contents: str) -> str:
    named = f"{app}\n{operation}\n{canonical_contents}".encode()
    return hashlib.md5(named, usedforsecurity=False).hexdigest()


def canonical(contents: Any) -> str:
    """The canonical form of contents. Raises `NotCanonical`, which names the path and says what to write instead."""
    value = _parsed(contents.text) if isinstance(contents, JsonText) else contents
    written = _written(value, "$", 0)
    if not _has_value(value):
        advice = "contents hold no value, only None, '', {} or []; pass the fields that distinguish this operation"
        raise NotCanonical("empty", "$", advice)
    return written


def canonical_fingerprint(fingerprint: Any) -> str:
    """As `canonical`, but a fingerprint may be without a value."""
    value = _parsed(fingerprint.text) if isinstance(fingerprint, JsonText) else fingerprint
    return _written(value, "$", 0)


def _parsed(text: str) -> Any:
    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise NotCanonical("not_json", "$", "a name occurs twice in its object; keep one of them")
        return dict(pairs)

    def constant(name: str) -> Any:
        raise NotCanonical("not_json", "$", f"{name} is no JSON; send it as text")

    try:
        return json.loads(text, parse_float=_Literal, parse_int=_Literal, parse_constant=constant, object_pairs_hook=members)
    except NotCanonical:
        raise
    except ValueError as error:
        raise NotCanonical("not_json", "$", f"the text is not JSON: {error}") from error
    except RecursionError as error:
        raise _too_deep("$") from error


def _has_value(value: Any) -> bool:
    """Returns true for a number, a boolean or a text with a character in it: one unset ID must not name every order."""
    if isinstance(value, dict):
        return any(map(_has_value, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_value, value))
    return value is not None and value != ""


def _written(value: Any, path: str, depth: int) -> str:
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, _Literal):
        return _number(value, path)
    if isinstance(value, Enum):
        raise NotCanonical("unsupported_type", path, f"{type(value).__name__} is an Enum; write its `.value` or `.name`")
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, int):
        if abs(value) >= 2**53:
            raise NotCanonical("integer_too_large", path, "an integer of 2^53 or more loses digits elsewhere; send it as text: str(n)")
        return str(int(value))
    if isinstance(value, float):
        advice = "a float is not exact; send integer minor units (1110 cents), a Decimal, or text"
        raise NotCanonical("float", path, advice)
    if isinstance(value, Decimal):
        return f'"{_decimal(value, path)}"'
    if isinstance(value, datetime):
        return f'"{_instant(value, path)}"'
    if isinstance(value, date):
        return f'"{value.isoformat()}"'
    if isinstance(value, UUID):
        return f'"{value}"'
    if isinstance(value, (list, tuple, dict)) and depth == DEPTH_MAX:
        raise _too_deep(path)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return "[" + ",".join(_written(item, f"{path}[{at}]", depth + 1) for at, item in enumerate(value)) + "]"
    if isinstance(value, dict):
        return _object(value, path, depth)
    advice = f"{type(value).__name__} has no canonical form; write a dict with explicit names, a list, or text"
    raise NotCanonical("unsupported_type", path, advice)


def _object(value: dict[Any, Any], path: str, depth: int) -> str:
    for name in value:
        if not isinstance(name, str) or isinstance(name, Enum):
            raise NotCanonical("key_not_text", path, f"the name {name!r} is not text; write str({name!r})")
    members = []
    # By UTF-16 code units, as the RFC requires: not the order of Python's own strings.
    for name in sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass")):
        step = f"{path}.{name}" if _SIMPLE_NAME.match(name) else f"{path}[{json.dumps(name)}]"
        members.append(f"{_text(name, step)}:{_written(value[name], step, depth + 1)}")
    return "{" + ",".join(members) + "}"


def _too_deep(path: str) -> NotCanonical:
    return NotCanonical("too_deep", path, f"nested deeper than {DEPTH_MAX} levels; send it as text")


def _text(value: str, path: str) -> str:
    if _SURROGATE.search(value):
        raise NotCanonical("surrogate", path, "a text holds half of a surrogate pair; decode it with errors='strict'")
    return json.dumps(value, ensure_ascii=False)


def _decimal(value: Decimal, path: str) -> str:
    """Plain notation without trailing zeros; `-0` is `0`."""
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise NotCanonical("not_finite", path, f"{value} is no number; send it as text, or leave it out")
    if not any(digits):
        return "0"
    if len(digits) + abs(exponent) > 2 * DECIMAL_LENGTH_MAX:
        raise _too_long(path)
    text = format(value, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    if len(text) > DECIMAL_LENGTH_MAX:
        raise _too_long(path)
    return text


def _too_long(path: str) -> NotCanonical:
    return NotCanonical("too_long", path, f"a decimal of more than {DECIMAL_LENGTH_MAX} characters; send it as text")


def _instant(value: datetime, path: str) -> str:
    if value.utcoffset() is None:
        advice = "a datetime without a zone is another instant elsewhere; give it one: value.replace(tzinfo=timezone.utc)"
        raise NotCanonical("no_zone", path, advice)
    moment = value.astimezone(timezone.utc)
    text = moment.strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    fraction = f".{moment.microsecond:06}".rstrip("0") if moment.microsecond else ""
    return f"{text}{fraction}Z"


def _number(literal: str, path: str) -> str:
    """A number of JSON text as ECMAScript writes its double, if that says the same as the literal."""
    try:
        exact = Decimal(literal)
    except InvalidOperation as error:
        raise NotCanonical("not_finite", path, "a number is beyond any double; send it as text") from error
    double = float(exact)
    if not exact.is_finite() or double in (float("inf"), float("-inf")):
        raise NotCanonical("not_finite", path, "a number is larger than any double; send it as text")
    # By the value and by its double: each may round up to a bound that the other keeps.
    if 2**53 <= abs(exact) < 10**21 or 2**53 <= abs(double) < 1e21:
        raise NotCanonical("integer_too_large", path, "a number of 2^53 or more loses digits elsewhere; send it as text")
    if len("".join(map(str, exact.as_tuple().digits)).strip("0")) > 17:
        raise NotCanonical("too_long", path, "a number has more than 17 significant digits; send it as text")
    if double == 0:
        if exact != 0:
            raise NotCanonical("not_finite", path, "a number is so small that it would become 0; send it as text")
        return "0"
    # The shortest digits that are this double: 0.d1d2d3... * 10^point.
    sign, shortest, exponent = Decimal(repr(double)).as_tuple()
    digits = "".join(map(str, shortest))
    point = len(digits) + int(exponent)
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        text = digits + "0" * (point - len(digits))
    elif 0 < point <= 21:
        text = f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        text = "0." + "0" * -point + digits
    else:
        fraction = f".{digits[1:]}" if digits[1:] else ""
        text = f"{digits[0]}{fraction}e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return "-" + text if sign else text
