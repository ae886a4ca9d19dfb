"""The key of a request: 1 to 255 visible ASCII characters, bare or as a string of structured fields (RFC 8941, 3.3.3)."""

from __future__ import annotations

LENGTH_MAX = 255
_ADVICE = "send a fresh random value for each operation, such as a UUID"


class InvalidKey(ValueError):
    """The request has no usable key; the text says what to send."""


def parse(lines: list[str], *, joined: bool) -> str:
    """Returns the key of the field lines, as its caller means it: the quoted and the bare form are the same.

    `joined`: the server joins the lines of one field by commas, so a comma outside of a string may stand between two keys.
    """
    if len(lines) > 1:
        raise InvalidKey("Idempotency-Key came twice; send one field with one key")
    text = lines[0].strip(" \t")
    if text.startswith('"'):
        text = _unquoted(text)
    elif joined and "," in text:
        raise InvalidKey("Idempotency-Key has a comma, as if it came twice; send one field with one key, quoted if it has commas")
    if not 1 <= len(text) <= LENGTH_MAX:
        raise InvalidKey(f"Idempotency-Key is empty or longer than {LENGTH_MAX} characters; {_ADVICE}")
    if not all("!" <= character <= "~" for character in text):
        raise InvalidKey(f"Idempotency-Key may have visible ASCII characters only; {_ADVICE}")
    return text


def _unquoted(text: str) -> str:
    wrong = InvalidKey("Idempotency-Key begins with a quote, and is not a string: close it, and escape quotes by a backslash")
    key, characters = "", iter(text[1:])
    for character in characters:
        if character == '"':
            rest = "".join(characters).lstrip(" \t")
            if rest.startswith(";"):
                raise InvalidKey("Idempotency-Key has parameters after the string; send the string alone")
            if rest.startswith(","):
                raise InvalidKey("Idempotency-Key came twice; send one field with one key")
            if rest:
                raise wrong
            return key
        if character == "\\":
            character = next(characters, "")
            if character not in ('"', "\\"):
                raise wrong
        key += character
    raise wrong
