"""Compares verify of a node with the full stack with that of another checkout of the project.

    scripts/bench verify --other FOLDER [--without COMPONENT]... [--rounds 5]

The other checkout has its own .venv (`scripts/install`). This one provisions a lab node; each locks the same
fleet, and they verify the node in turns. `--without` leaves out components that the other one does not know.
Checks that fail are printed first: their diagnoses take time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.bench._bars import Bar, verdict
from tests.campaign._roles_fleet import SETTLED, bring_up
from tests.lab.command_line import PROGRAM, gpuprov

SYSTEM = "debian12"
REPOSITORIES = ("nvidia", "container-toolkit")
MOST = 1.3
Program = Sequence[str | Path]


def main() -> int:
    """Measure and print; return 1 if this checkout's verify takes longer than `MOST` times the other's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", type=Path, required=True)
    parser.add_argument("--without", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=5)
    stated = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuprov-bench-")))
        folder.chmod(0o755)
        provisioned(stack, folder, stated.without)
        other = folder / "other"
        shutil.copytree(folder / "profiles", other / "profiles")
        shutil.copy(folder / "fleet.yml", other)
        programs = {folder: PROGRAM, other: (stated.other.absolute() / ".venv/bin/python", "-m", "gpuprov")}
        gpuprov(other, "lock", program=programs[other])
        for place, program in programs.items():
            print(f"{program[0]}: {outcome(place, program)}", flush=True)
        times: dict[Path, list[float]] = {place: [] for place in programs}
        for _ in range(stated.rounds):
            for place, program in programs.items():
                times[place].append(seconds(place, program))
    for place, taken in times.items():
        listed = " ".join(f"{each:.2f}" for each in taken)
        print(f"  {programs[place][0]}: {statistics.median(taken):.2f} s  ({listed})")
    return verdict([ratio(times[folder], times[other])])


def provisioned(stack: ExitStack, folder: Path, without: Sequence[str]) -> None:
    """Bring a new node to the lock in `folder`; closing the stack removes it."""
    fleet = bring_up(stack, f"bench-verify-{os.getpid()}", folder, [SYSTEM])
    document = fleet.document(0)
    [group] = document["groups"].values()
    for component in without:
        del group["stack"][component]
    document["repositories"] = {name: document["repositories"][name] for name in REPOSITORIES}
    (folder / "fleet.yml").write_text(json.dumps(document))
    gpuprov(folder, "lock")
    gpuprov(folder, "apply", "--reboot", "--yes", "--no-verify")
    fleet.nodes[SYSTEM].run(SETTLED, check=False)


def outcome(folder: Path, program: Program) -> str:
    """Verify the node; return the number of checks and the failed ones."""
    said = gpuprov(folder, "verify", "-o", "json", code=None, program=program)
    [node] = json.loads(said.stdout)["nodes"]
    failed = [each["check"] for each in node["checks"] if each["status"] == "failed"]
    return f"{len(node['checks'])} checks, failed: {', '.join(failed) or 'none'}"


def seconds(folder: Path, program: Program) -> float:
    """Return the wall seconds of a verification."""
    begun = time.perf_counter()
    gpuprov(folder, "verify", code=None, program=program)
    return time.perf_counter() - begun


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Bar:
    """Return the ratio of the medians with its limit, and print it."""
    bar = Bar("verify / the other verify", statistics.median(ours) / statistics.median(theirs), most=MOST)
    print(f"  {bar.name} {bar.figure:.2f}   ({bar.limit})")
    return bar


if __name__ == "__main__":
    sys.exit(main())
