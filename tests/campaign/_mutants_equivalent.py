"""Mutants that no test can kill: the file and the changed line, with the reason."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str], str] = {}
