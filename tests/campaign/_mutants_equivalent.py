"""Mutants that no test can kill: the file and the change, with the reason."""

from __future__ import annotations

PAUSE = "a pause between two tries has no exact length"

EQUIVALENT: dict[tuple[str, str], str] = {
    ("gpuprov/access/deadman.py", "time.sleep(2) -> time.sleep(3)"): PAUSE,
    ("gpuprov/ssh/contained.py", "make_folders(path.parent) -> pass"): "state_dir makes this folder",
    (
        "gpuprov/ssh/route.py",
        'itself = (_first(there, "hostname") or host'
        ', port or int(_first(there, "port") or 22)) == to -> '
        "itself = ((_first(there, 'hostname') and host)"
        ', port or int(_first(there, "port") or 22)) == to',
    ): "without a hostname ssh is not configured, and then the jump host is stated",
    (
        "gpuprov/ssh/workers/crew.py",
        "time.sleep(0.5 if still else 0) -> time.sleep(0.5 if (not (still)) else 0)",
    ): PAUSE,
    (
        "gpuprov/ssh/workers/crew.py",
        "time.sleep(0.5 if still else 0) -> time.sleep(0.5 if still else 1)",
    ): PAUSE,
    (
        "gpuprov/ssh/workers/sites.py",
        "self._looks, self._changes = 1, 0 -> self._looks, self._changes = 1, 1",
    ): "the first number of a change is the time of day, which is higher",
}
