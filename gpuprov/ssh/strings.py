"""Strings of SSH (RFC 4251, section 5), which Paramiko fills with zeros up to a stated length."""

from __future__ import annotations


def strings_of(data: bytes) -> list[bytes]:
    """Return the strings that these bytes consist of, each behind its length in four bytes.

    Raises:
        ValueError: the lengths do not add up to the bytes.
    """
    found, place = [], 0
    while place < len(data):
        end = place + 4 + int.from_bytes(data[place : place + 4], "big")
        if place + 4 > len(data) or end > len(data):
            raise ValueError("a length beyond its end")
        found.append(data[place + 4 : end])
        place = end
    return found
