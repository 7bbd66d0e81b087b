"""Limits of what a report shows of a node: nodes decide how many differences they have, and how long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuprov.drift.judge import NodeDrift
from gpuprov.untrusted import json_text

VALUE = 4096
"""Maximum number of characters of a value; all packages that a fresh node lacks have half of them."""
DIFFERENCES = 512
"""Maximum number of a node's differences; a lock states fewer checks."""
PLACES = 8
"""Maximum number of places that set a value."""


def beginning(text: str, most: int = VALUE) -> str:
    """Return a text; a longer one by its beginning and its number of characters."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def limited_value(value: Any) -> Any:
    """Return a value; one whose JSON is longer than `VALUE` as the beginning of its JSON, or of its text."""
    written = value if isinstance(value, str) else json_text(value, indent=None)
    return value if len(written) <= VALUE else beginning(written)


def limited(node: NodeDrift) -> NodeDrift:
    """Return a node's result with at most `DIFFERENCES` differences and limited values and reasons."""
    drift = tuple(
        replace(
            each,
            expected=limited_value(each.expected),
            actual=limited_value(each.actual),
            by=tuple(beginning(place) for place in each.by[:PLACES]),
        )
        for each in node.drift[:DIFFERENCES]
    )
    return replace(node, drift=drift, reason=node.reason and beginning(node.reason))
