"""Tests: unit (seconds, no network), lab (real nodes), campaign (minutes of trying), bench (measuring)."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The checkout."""
RECORDED = ROOT / "tests/recorded"
"""What real nodes said."""
H200 = RECORDED / "h200x4"
"""Of a server with four H200: its tools' own words, and the facts that the probe made of it."""
RECORDED_LOCK = RECORDED / "verify/debian12-a100x4.lock.yml"
"""The lock of the node whose answers lie beside it."""
RECORDED_FACTS = RECORDED / "verify/debian12-a100x4.facts.json"
"""Its facts."""
