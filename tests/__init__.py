"""Tests: unit (seconds, no network), lab (real nodes), campaign (trials of minutes), bench (measurements)."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""Root of the checkout."""
RECORDED = ROOT / "tests/recorded"
"""Recorded output of real nodes."""
H200 = RECORDED / "h200x4"
"""Recordings of a server with four H200: output of its tools, and the facts that the probe returned."""
RECORDED_LOCK = RECORDED / "verify/debian12-a100x4.lock.yml"
"""Lock of the node whose recorded answers are in the same folder."""
RECORDED_FACTS = RECORDED / "verify/debian12-a100x4.facts.json"
"""Facts of this node."""


def is_defect(output: str) -> bool:
    """Return whether the output of gpuprov has a traceback, or its message about an unexpected exception."""
    return "Traceback" in output or "gpuprov: unexpected " in output
