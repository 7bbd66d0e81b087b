"""Runs each role alone on the smallest system of its distribution: a first run, a second run, and verify.

    scripts/campaign minimal [ROLE]... [--system ID]... [--results FILE] [--markdown FILE] [-v]

A node has minbase, an init, a kernel, sshd and Python; one role runs on it, after preflight and the package
sources. Roles that need GPUs run on a node that already has the driver. Exit 1 if a cell is bad.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from gpuprov.apply.context import Consent
from gpuprov.apply.plan import RUNNABLE
from gpuprov_lab import Lab
from tests.campaign._minimal_nodes import COLUMNS, LOOPS, Cell, Trials
from tests.campaign._roles_fleet import detach
from tests.systems import DEBIAN

ON_THE_DRIVER = ("fabric_manager", "gpu_settings", "profiling_tools", "monitoring", "package_pins")
SEEN = "seen"


def main() -> int:
    """Run the roles on minimal nodes, and write the table; return 1 if a cell is bad."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("roles", nargs="*", metavar="ROLE", help="only these")
    parser.add_argument("--system", action="append", choices=DEBIAN, help="only this one; repeatable")
    parser.add_argument("--results", type=Path, help="add to what an earlier run saw")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what each task said that failed")
    wanted = parser.parse_args()
    began = time.monotonic()
    cells: dict[Cell, str] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuprov-minimal-")))
        folder.chmod(0o755)
        lab = stack.enter_context(Lab(f"minimal-{os.getpid()}"))
        stack.callback(detach, LOOPS.values())
        trials = Trials(stack, lab, folder, list(DEBIAN))
        for system in wanted.system or DEBIAN:
            cells |= _try(trials, system, wanted.roles or list(RUNNABLE))
            lab.down()
    if wanted.results:
        cells = _joined(wanted.results, cells)
    sys.stdout.write("\n".join(_markdown(cells)) + "\n")
    bad = [cell for cell, said in cells.items() if said != SEEN]
    sys.stdout.write(f"{len(cells)} cells, {len(bad)} bad; {time.monotonic() - began:.0f} s\n")
    if wanted.markdown:
        wanted.markdown.write_text("\n".join(_markdown(cells)) + "\n")
    return 1 if bad else 0


def _try(trials: Trials, system: str, roles: list[str]) -> dict[Cell, str]:
    """Run each role on a separate node, the driver's first, whose image the roles that need it use."""
    beside = [role for role in roles if role in ON_THE_DRIVER]
    alone = [role for role in roles if role not in beside and role != "nvidia_driver"]
    seen: dict[Cell, str] = {}
    if "nvidia_driver" in roles or beside:
        driven = trials.nodes(system, ["nvidia_driver"])
        seen |= trials.run(driven, Consent(reboot=True))
        image = trials.saved(driven["nvidia_driver"])
        seen |= trials.run(trials.nodes(system, beside, image), Consent())
    return seen | trials.run(trials.nodes(system, alone), Consent())


def _joined(path: Path, cells: dict[Cell, str]) -> dict[Cell, str]:
    """Write new cells to the file in addition to its own, and return all; new ones have precedence."""
    rows = json.loads(path.read_text()) if path.exists() else []
    every = {(system, role, column): said for system, role, column, said in rows} | cells
    path.write_text(json.dumps([[*cell, said] for cell, said in every.items()], indent=0) + "\n")
    return every


def _markdown(cells: dict[Cell, str]) -> Iterator[str]:
    """Yield the lines of the page with the table."""
    systems = [system for system in DEBIAN if system in {cell[0] for cell in cells}]
    yield "# Test results of single roles on minimal systems"
    yield ""
    yield "`scripts/campaign minimal --markdown` generates this page. A cell is the number of systems on"
    yield f"which the test passed. Systems: {', '.join(systems)}. A node has `debootstrap --variant=minbase`,"
    yield "systemd, a kernel, openssh-server and python3."
    yield ""
    yield "| role | " + " | ".join(COLUMNS) + " |"
    yield "|---" * (len(COLUMNS) + 1) + "|"
    for role in RUNNABLE:
        result = [
            [cells[system, role, each] for system in systems if (system, role, each) in cells]
            for each in COLUMNS
        ]
        if any(result):
            yield f"| {role} | " + " | ".join(f"{said.count(SEEN)} of {len(said)}" for said in result) + " |"
    yield ""
    for column, means in COLUMNS.items():
        yield f"- **{column}**: {means}."
    yield f"- {', '.join(ON_THE_DRIVER)} run on nodes with the driver; other roles run first on their node."
    for (system, role, column), said in cells.items():
        if said != SEEN:
            yield f"- not seen: {role} on {system}, *{column}*: {said}."


if __name__ == "__main__":
    sys.exit(main())
