"""Mutants that no test can kill: the file and the changed line, with the reason."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str], str] = {
    ("gpuprov/access/deadman.py", "time.sleep(3)"): "the pause between two tries has no exact length",
}
