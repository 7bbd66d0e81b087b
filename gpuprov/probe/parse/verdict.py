"""The verdict of a node's health check."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuprov.untrusted import on_one_line
from gpuprov.untrusted.numbers import finite

WORDS = ("isolate", "reset", "unknown", "watch", "healthy")
TEXT = 300
NUMBER = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True)
class NodeVerdict:
    """The last verdict of a node.

    Attributes:
        word: one of `WORDS`.
        rule, text: of its first fault, "" without one.
        age_s: seconds since its run.
        valid_s: seconds for which it is valid.
        is_of_this_boot: whether the node has not booted since.
    """

    word: str
    rule: str
    text: str
    age_s: float
    valid_s: float
    is_of_this_boot: bool

    @property
    def is_fresh(self) -> bool:
        """Whether it is of this boot and not older than `valid_s`."""
        return self.is_of_this_boot and self.age_s <= self.valid_s


def parse_verdict(raw: Mapping[str, Any]) -> NodeVerdict | None:
    """Parse the line of a verdict, with rule and text cut to `TEXT` characters; None without a line, or with
    one that the program does not write.

    Raises:
        KeyError, NodeFailed: the document lacks a value, or its time since boot is not a number.
    """
    words = str(raw["line"] or "")[:4096].split(" ", 6)
    if len(words) < 6 or words[0] not in WORDS or not all(NUMBER.fullmatch(each) for each in words[2:5]):
        return None
    at, valid = int(words[2]), int(words[3])
    rule, text = words[5].strip(), words[6].strip() if len(words) > 6 else ""
    return NodeVerdict(
        words[0],
        "" if rule == "-" else on_one_line(rule)[:TEXT],
        on_one_line(text)[:TEXT],
        age_s=finite(raw["uptime"]) - at,
        valid_s=valid,
        is_of_this_boot=words[1] == str(raw["boot_id"]),
    )
