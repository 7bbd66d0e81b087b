"""Configuration of IMEX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LIMIT = 4096
"""Largest number of lines that are read; an NVLink domain has up to 72 nodes."""


@dataclass(frozen=True)
class Imex:
    """IMEX's list of nodes, and its settings by key; both are empty without their files."""

    nodes: tuple[str, ...]
    settings: Mapping[str, str]


def parse_imex(raw: Mapping[str, Any]) -> Imex:
    """Parse the texts of nodes_config.cfg and config.cfg; comments and empty lines are left out."""
    pairs = (line.partition("=") for line in _lines(raw["config"]))
    return Imex(tuple(_lines(raw["nodes"])), {key.strip(): value.strip() for key, _, value in pairs})


def _lines(text: object) -> list[str]:
    """Return the lines of a text with content, without comments, of the first `LIMIT` lines; none if there is
    no text.
    """
    lines = str(text or "").splitlines()[:LIMIT]
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
