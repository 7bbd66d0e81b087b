"""Recorded output of the program on real GPUs of virtual machines: two H200, four H200, four H100.

Most weaknesses were caused by other processes, without a change to the machine's settings: a process that
multiplies matrices on one GPU, one that fills a PCIe link, one that holds 100 GiB of a memory. For one more
recording NCCL_P2P_DISABLE=1 was set for the program. Two were found: copies of an H100 that other guests of
the host disturbed, and an H100 that the driver slowed at 82 °C.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tests import ROOT

FOLDER = ROOT / "tests/recorded/accept"


@cache
def _text(name: str, machine: str) -> str:
    """Return the recorded output of a program on a machine."""
    return (FOLDER / f"{machine}-{name}.json").read_text(encoding="utf-8")


def recorded(name: str, machine: str = "h200x2") -> dict[str, Any]:
    """Return a new copy of a recording, which the caller may change."""
    document: dict[str, Any] = json.loads(_text(name, machine))
    return document
