"""The part of DER (ITU-T X.690) that the signature of a kernel module uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

INTEGER, OCTETS, NULL, OBJECT_ID, SEQUENCE, SET = 0x02, 0x04, 0x05, 0x06, 0x30, 0x31
"""Tags of ITU-T X.690, 8.1.2; those of SEQUENCE and SET with the bit of constructed types."""
EXPLICIT = 0xA0
"""Tag [0], which encloses the content of a CMS ContentInfo."""


class Item(NamedTuple):
    """One element of DER: its tag byte, its content, and its whole encoding with tag and length."""

    tag: int
    content: bytes
    whole: bytes


def element(tag: int, *parts: bytes) -> bytes:
    """Return the encoding of an element with this tag, whose content is the parts one after the other."""
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def integer(value: int) -> bytes:
    """Return the encoding of a number as INTEGER.

    Raises:
        OverflowError: the number is negative.
    """
    return element(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def items(content: bytes) -> Iterator[Item]:
    """Yield the consecutive elements in a content, not those inside them; none if it is empty.

    Raises:
        ValueError: an element is longer than the content, or has no definite length of up to four bytes.
    """
    at = 0
    while at < len(content):
        start, tag, size, at = at, content[at], *_length(content, at + 1)
        if at + size > len(content):
            raise ValueError("an element is longer than its container")
        yield Item(tag, content[at : at + size], content[start : at + size])
        at += size


def _length(content: bytes, at: int) -> tuple[int, int]:
    """Return the length of an element's content, and the offset at which the content starts.

    Raises:
        ValueError: there is no length at the offset `at`, an indefinite one, or one of more than four bytes.
    """
    first = content[at] if at < len(content) else 0x80
    if first < 0x80:
        return first, at + 1
    count = first & 0x7F
    if not 1 <= count <= 4 or at + 1 + count > len(content):
        raise ValueError("an element has no length")
    return int.from_bytes(content[at + 1 : at + 1 + count], "big"), at + 1 + count
