"""Mutants that no test can kill: the file and the changed line, with the reason."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str], str] = {
    ("gpuprov/access/deadman.py", "time.sleep(3)"): "the pause between two tries has no exact length",
    ("gpuprov/ssh/workers/crew.py", "time.sleep(0.5 if (not (still)) else 0)"): "as above",
    ("gpuprov/ssh/workers/crew.py", "time.sleep(0.5 if still else 1)"): "as above",
    ("gpuprov/ssh/workers/sites.py", "self._looks, self._changes = 1, 1"): (
        "the first number of a change is the time of day, which is higher"
    ),
}
