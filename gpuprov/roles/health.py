"""Variables and expectations of a node's health check."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from gpuprov.files.packing import one_file
from gpuprov.model.lock import LockedGroup
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.monitoring import textfile_path
from gpuprov.roles.overruling import BY_HAND, mends

PROGRAM = "/usr/local/sbin/gpuprov-health"
CONFIG = "/etc/gpuprov/health.json"
LIBRARY = "/usr/local/libexec/gpuprov"
SLURM = ("slurm-health", "slurm-prolog", "slurm-epilog")
"""Names of one script, which does what its name says."""
PLUGIN = "npd-health"
TIMER = "gpuprov-health.timer"
SERVICE = "gpuprov-health.service"
RESERVE = "gpuprov-health-reserve.service"
"""Started by the timer at boot, before programs of users."""
UNITS = {"health.timer": TIMER}
VERDICT = "/run/gpuprov/health"
"""The verdict as one line (`gpuprov.health.output.line`)."""
FIRST_S = 180.0
"""Seconds after a boot in which the first verdict need not be there: the timer waits for 30 s, a run takes at
most 50 s, and the timer itself starts late in the boot.
"""
TEXTFILE = "gpuprov-health.prom"
SYSTEMD = "/etc/systemd/system"

OVERRULED = (
    *mends("health", "health.timer", BY_HAND),
    *mends("health", "health.files", "a manual edit of a file of the role"),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected files, the timer, and a fresh verdict; empty without the setting."""
    if group.setting("health") is None:
        return []
    digests = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in files(group).items()}
    return [
        Expectation("health.files", digests, "health"),
        Expectation("health.timer", "enabled", "health"),
        Expectation("health.verdict", "fresh", "health"),
    ]


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return path → content of the role's files; empty without the setting, which removes them."""
    return {"health_files": files(group) if group.setting("health") is not None else {}}


def files(group: LockedGroup) -> dict[str, str]:
    """Return path → content of all files of the role; only for a group with the setting."""
    stated = group.setting("health")
    return {
        PROGRAM: program(),
        CONFIG: json.dumps(configuration(group), indent=1, sort_keys=True) + "\n",
        **{f"{LIBRARY}/{name}": _script("slurm") for name in SLURM},
        f"{LIBRARY}/{PLUGIN}": _script(PLUGIN),
        **{f"{SYSTEMD}/{name}": _script(name) for name in (SERVICE, RESERVE)},
        f"{SYSTEMD}/{TIMER}": _script(TIMER).replace("INTERVAL", str(stated["interval"])),
    }


def configuration(group: LockedGroup) -> dict[str, Any]:
    """Return the program's configuration; its metrics are in the folder of those of the role monitoring."""
    own = textfile_path(group)
    textfile = f"{own.rpartition('/')[0]}/{TEXTFILE}" if own else None
    return {**group.setting("health"), "textfile": textfile}


@cache
def program() -> str:
    """Return the program: the package `gpuprov.health` and the doctor, as one file."""
    root = Path(__file__).parents[2]
    names = [
        *_modules(root, "gpuprov/probe/node", without=("launcher", "load", "status", "main")),
        *_modules(root, "gpuprov/doctor/concerns"),
    ]
    data = [
        path.relative_to(root).as_posix()
        for folder in ("gpuprov/catalog/data", "gpuprov/doctor/data")
        for path in sorted((root / folder).glob("*.json"))
    ]
    return one_file((*names, "gpuprov.health.look", "gpuprov.health.program"), tuple(data))


def _modules(root: Path, folder: str, without: tuple[str, ...] = ()) -> list[str]:
    """Return the names of the modules in a folder that begin with a letter, sorted, except those of
    `without`.
    """
    stems = sorted(path.stem for path in (root / folder).glob("[a-z]*.py"))
    return [f"{folder.replace('/', '.')}.{stem}" for stem in stems if stem not in without]


def _script(name: str) -> str:
    """Return a script or unit of `gpuprov/health/node`."""
    return (Path(__file__).parents[1] / "health/node" / name).read_text("utf-8")
