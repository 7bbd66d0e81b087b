"""Text from nodes as it may be shown: what would steer a terminal is spelled out instead."""

from __future__ import annotations

import re

# Control characters but tab and newline, the C1 ones, and those that turn the direction of writing.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""Escapes are spelled out: `\x1b[31m`. Lines stay lines."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def on_one_line(text: str) -> str:
    r"""The same, with newlines spelled out too: a node's word cannot look like a line of ours."""
    return printable(text).replace("\n", "\\n")
