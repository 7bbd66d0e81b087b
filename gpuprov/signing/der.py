"""As much of DER (ITU-T X.690) as a signature of a kernel module needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

INTEGER, OCTETS, NULL, OBJECT_ID, SEQUENCE, SET = 0x02, 0x04, 0x05, 0x06, 0x30, 0x31
EXPLICIT = 0xA0
"""[0], as CMS has it around what a content type announces."""


class Item(NamedTuple):
    """One element: its tag, its content, and all its bytes."""

    tag: int
    content: bytes
    whole: bytes


def element(tag: int, *parts: bytes) -> bytes:
    """An element of that content."""
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def integer(value: int) -> bytes:
    """A number that is not negative."""
    return element(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def items(content: bytes) -> Iterator[Item]:
    """The elements that lie one after the other in a content.

    Raises:
        ValueError: one ends beyond it.
    """
    at = 0
    while at < len(content):
        start, tag, size, at = at, content[at], *_length(content, at + 1)
        if at + size > len(content):
            raise ValueError("an element that is longer than what it is in")
        yield Item(tag, content[at : at + size], content[start : at + size])
        at += size


def _length(content: bytes, at: int) -> tuple[int, int]:
    """An element's length and where its content starts."""
    first = content[at] if at < len(content) else 0x80
    if first < 0x80:
        return first, at + 1
    count = first & 0x7F
    if not 1 <= count <= 4 or at + 1 + count > len(content):
        raise ValueError("an element without a length")
    return int.from_bytes(content[at + 1 : at + 1 + count], "big"), at + 1 + count
