"""Parsers of JSON and TOML that a node, a mirror or a service sent; limits are checked before parsing.

The size of a text does not limit the memory of its values: `[[],[],…]` takes 25 times its size. A value
takes at most `VALUE_MEMORY` bytes in addition to its text, and a character at most four (CPython 3.11).
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, TypeVar

Document = TypeVar("Document")

VALUES = 1 << 17
"""Maximum number of values of one document, at least twice as many as the largest legitimate one.

Recorded facts have up to 600 and results of `accept` 1,200; 4,000 lines of the kernel log for the doctor have
up to 50,000 with their commas, and a load sample 3 for each thread of a program on a GPU.
"""
VALUE_MEMORY = 350
"""Maximum memory of one value in bytes without its text: measured with mappings of one key each."""
CHARACTER_MEMORY = 4
"""Maximum memory of one character of a string in bytes."""
TOML_BYTES = 64 << 10
"""Maximum size of a TOML document; `containerd config default` prints about 10 kB."""
TOML_DOTS = 512
"""Maximum number of dots on a line of TOML: tomllib's time is the depth of keys times their number."""

DEPTH = 64
"""Maximum depth of lists and mappings in each other: what prints or compares documents calls itself.

Recorded answers of nodes have up to 8.
"""
LARGEST_NUMBER = (1 << 64) - 1
"""Largest whole number, also below zero. Python prints no number of more than 4300 digits."""
TOO_DEEP = "nested too deeply"

_LONE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile(rb"\\u[dD][89a-fA-F]")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""Character in place of one that is missing or cannot be encoded."""


def count_values(data: bytes, most: int = VALUES) -> int:
    """Return an upper bound of the number of values in a JSON text, with lists and mappings.

    The bound is the number of `[`, `{` and `,`, and one; those in strings count only below `most`.

    Raises:
        ValueError: it is larger than `most`.
    """
    found = 1 + _signs(data)
    if found <= most:
        return found
    # Inside strings only: a backslash elsewhere is not JSON, and ends the parser there.
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') <= 4 * most:  # a string and its key for each value
        found = 1 + sum(map(_signs, plain.split(b'"')[::2]))
    if found > most:
        raise ValueError(f"more than {most} values")
    return found


def memory_limit_of(data: bytes, most: int = VALUES) -> int:
    """Return the maximum memory in bytes of the document in a JSON text; more values count as `most`."""
    return CHARACTER_MEMORY * len(data) + VALUE_MEMORY * min(1 + _signs(data), most)


def _signs(text: bytes) -> int:
    """Return the number of `[`, `{` and `,` in the text, also in strings."""
    return text.count(b"[") + text.count(b"{") + text.count(b",")


def read_json(data: bytes | str, size: int, values: int = VALUES, depth: int = DEPTH) -> Any:
    """Return the JSON document in a text of UTF-8; of equal keys in an object the last one counts.

    Surrogates without a partner are replaced: they can be neither printed nor recorded.

    Args:
        data: text, without NaN and infinite numbers.
        size: maximum size of the text in bytes.
        values: maximum number of values, as `count_values` counts them.
        depth: maximum number of levels.

    Raises:
        ValueError: the text is larger, has more values, is not UTF-8 or not JSON, has a number that is not
            finite, or `require_printable` refuses the document.
    """
    if isinstance(data, str):
        data = _LONE.sub(REPLACEMENT, data).encode()
    if len(data) > size:
        raise ValueError(f"{len(data)} bytes, more than {size}")
    count_values(data, values)
    # json.loads would also decode UTF-16, in whose bytes no values can be counted.
    text = data.decode("utf-8")
    try:
        document = json.loads(text, parse_constant=_refused, parse_float=_finite)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    require_printable(document, depth)
    return without_surrogates(document) if _ESCAPED.search(data) else document


def read_object(data: bytes | str, size: int) -> dict[str, Any]:
    """Return the JSON object in a text; raise ValueError as `read_json` does, or if it is no object."""
    document = read_json(data, size)
    if not isinstance(document, dict):
        raise ValueError("not an object")  # noqa: TRY004 - as for any other wrong text
    return document


def require_printable(document: object, depth: int = DEPTH) -> None:
    """Check that lists, mappings and numbers of a document can be printed, compared and copied.

    Raises:
        ValueError: they are nested in more than `depth` levels, a whole number exceeds `LARGEST_NUMBER`, or
            a number is not finite.
    """
    level = [document]
    for _ in range(depth + 1):
        parts: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                parts += value.values()
            elif isinstance(value, (list, tuple, set, frozenset)):
                parts += value
            elif isinstance(value, int) and abs(value) > LARGEST_NUMBER:
                raise ValueError(f"a whole number of {value.bit_length()} bits")
            elif isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{value} is not a number")
        if not parts:
            return
        level = parts
    raise ValueError(TOO_DEEP)


def printable_value(value: Any) -> Any:
    """Return a value of a node; a text with the reason if `require_printable` refuses it."""
    try:
        require_printable(value)
    except ValueError as error:
        return f"a value that cannot be printed: {error}"
    return value


def with_json_numbers(document: Any) -> Any:
    """Return a copy of a document with None in place of each number that `require_printable` refuses.

    Tuples become lists.
    """
    if isinstance(document, dict):
        return {key: with_json_numbers(value) for key, value in document.items()}
    if isinstance(document, (list, tuple)):
        return [with_json_numbers(value) for value in document]
    is_number = isinstance(document, (int, float))
    return None if is_number and not abs(document) <= LARGEST_NUMBER else document


def without_surrogates(document: Document) -> Document:
    """Return a JSON document with `REPLACEMENT` for surrogates; its lists and mappings are changed in place.

    JSON's escape sequences can write half of a character; Python's `surrogateescape` makes one of each byte
    that is not UTF-8. Neither can be encoded. Of keys that become equal the last one counts.
    """
    whole = [document]
    rest: list[Any] = [whole]
    while rest:
        part = rest.pop()
        if isinstance(part, dict) and any(isinstance(key, str) and _LONE.search(key) for key in part):
            entries = [(_whole(key), value) for key, value in part.items()]
            part.clear()
            part.update(entries)
        for place in list(part) if isinstance(part, dict) else range(len(part)):
            value = part[place]
            if isinstance(value, str):
                part[place] = _whole(value)
            elif isinstance(value, (dict, list)):
                rest.append(value)
    return whole[0]


def _whole(text: Any) -> Any:
    """Return a text with its surrogates replaced; other values are returned unchanged."""
    return _LONE.sub(REPLACEMENT, text) if isinstance(text, str) else text


def _refused(constant: str) -> float:
    """Refuse one of JSON's constants NaN, Infinity and -Infinity, or a number that is too large.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{constant} is not a number")


def _finite(text: str) -> float:
    """Return the number in a text.

    Raises:
        ValueError: it is too large for a float.
    """
    number = float(text)
    return number if math.isfinite(number) else _refused(text[:20])


def whole_number(text: str) -> int | None:
    """Return the number of at most 18 decimal digits that a text is; None for any other text.

    No number that is calculated from it is too large to print.
    """
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def read_toml(text: str) -> dict[str, Any]:
    """Return the TOML document in a text of at most `TOML_BYTES`.

    Raises:
        ValueError: the text is larger, has more than `TOML_DOTS` dots in a line, is not TOML, or
            `require_printable` refuses the document.
    """
    import tomllib

    if len(text) > TOML_BYTES or len(text.encode("utf-8", "surrogatepass")) > TOML_BYTES:
        raise ValueError(f"larger than {TOML_BYTES >> 10} KiB")
    if any(line.count(".") > TOML_DOTS for line in text.split("\n")):
        raise ValueError(f"a line with more than {TOML_DOTS} dots")
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    require_printable(document)
    return document
