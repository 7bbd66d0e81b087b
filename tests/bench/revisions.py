"""Compares this checkout with another revision: the same steps on equal new nodes, in one run.

    scripts/bench revisions --against REVISION [--rounds 2] [--nodes 4] [--once]

Each revision locks with its own code, applies to new nodes with a module that one builder compiles and
reboots them (`once`; DKMS is real, a stub replaces the compiler), applies a changed clock (`apply`), applies
again without changes (`again`), runs drift (`drift`) and upgrades to another driver (`upgrade`). The order of
the revisions changes from round to round: an even number of rounds is fair. --once leaves out all steps but
the first, whose time varies most (packages of new nodes), for more rounds of it. The ratio is that of the
medians. Processor seconds are those of the nodes and of gpuprov; other load on the machine changes them
little.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from gpuprov_lab import Lab
from tests.bench._by_hand import begin
from tests.bench._processor import processor_s
from tests.lab.command_line import gpuprov
from tests.lab.stub_compiler import play_compiler

BAR = 1.05
NEWER, OLDER = "535.309.01", "535.261.03"
REPEATS = {"again": 3, "drift": 5}
"""Repetitions of short steps in a round; other steps run once."""
Cost = tuple[float, float]
"""Wall and processor seconds of one step."""
Times = dict[str, list[Cost]]


@dataclass(frozen=True)
class Revision:
    """One revision of gpuprov.

    Attributes:
        name: `before` or `now`.
        tree: its checkout.
    """

    name: str
    tree: Path

    def run(self, folder: Path, *words: str) -> None:
        """Run a command of this revision in `folder`.

        Raises:
            AssertionError: another exit code, or a traceback.
        """
        program = ("env", f"PYTHONPATH={self.tree}", sys.executable, "-m", "gpuprov")
        gpuprov(folder, *words, program=program)


def main() -> int:
    """Measure and print; return 1 if a step costs more than `BAR`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", required=True, help="a commit or tag, such as HEAD~10")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    times: dict[str, Times] = {"before": defaultdict(list), "now": defaultdict(list)}
    here = Path(__file__).parents[2]
    with ExitStack() as stack:
        before = Revision("before", stack.enter_context(worktree(here, options.against)))
        revisions = [before, Revision("now", here)]
        lab = stack.enter_context(Lab(f"bench-revisions-{os.getpid()}"))
        for turn in range(options.rounds):
            for revision in revisions if turn % 2 == 0 else reversed(revisions):
                measure(lab, revision, options.nodes, times[revision.name], only_once=options.once)
    return report(times)


@contextmanager
def worktree(repository: Path, revision: str) -> Iterator[Path]:
    """Check out another revision, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="gpuprov-bench-") as folder:
        tree = Path(folder, "tree")
        git = ["git", "-C", str(repository), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(tree), revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def measure(lab: Lab, revision: Revision, count: int, times: Times, *, only_once: bool) -> None:
    """Run one revision's steps on new nodes, or only the first of them."""
    nodes = lab.up(gpu="a100x4", names=[f"node{number + 1}" for number in range(count)])
    for node in nodes:
        play_compiler(node, NEWER, OLDER)
        begin(node)
    with tempfile.TemporaryDirectory(prefix="gpuprov-bench-") as name:
        folder = Path(name)
        state(lab, revision, folder, OLDER)
        (folder / "fleet.lock.yml").rename(folder / "other.lock.yml")
        state(lab, revision, folder, NEWER)
        step = partial(timed, lab, revision, folder, times)
        step("once", "apply", "--yes")
        if not only_once:
            later_steps(lab, revision, folder, step)
    lab.down([node.name for node in nodes])


def later_steps(lab: Lab, revision: Revision, folder: Path, step: Callable[..., None]) -> None:
    """Run the steps after the first on the same nodes."""
    state(lab, revision, folder, NEWER, clocks={"graphics": 1395, "memory": 1593})
    step("apply", "apply", "--yes")
    step("again", "apply", "--yes")
    step("drift", "drift")
    step("upgrade", "upgrade", "--to", "other.lock.yml", "--yes")


def state(lab: Lab, revision: Revision, folder: Path, driver: str, **settings: Any) -> None:
    """Write a fleet of the lab's nodes, and lock it with a revision's own code."""
    fleet = yaml.safe_load(lab.fleet("hgx-a100-4"))
    [group] = fleet["groups"].values()
    group["stack"] = {
        "repository": "distribution",
        "driver": driver,
        "module_build": "once",
        "builder": "node1",
    }
    group["settings"] = {**group.get("settings", {}), **settings}
    fleet |= {"reboot": {"allowed": True, "timeout_s": 60}, "rollout": {"settle_s": 0}}
    (folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
    revision.run(folder, "lock")


def timed(lab: Lab, revision: Revision, folder: Path, times: Times, what: str, *words: str) -> None:
    """Measure a command; print each figure at once."""
    for _ in range(REPEATS.get(what, 1)):
        wall, processor = time.perf_counter(), processor_s(lab)
        revision.run(folder, *words)
        cost = time.perf_counter() - wall, processor_s(lab) - processor
        times[what].append(cost)
        print(f"  {revision.name} {what}: {cost[0]:.1f} s, processor {cost[1]:.1f} s")


def report(times: dict[str, Times]) -> int:
    """Print a line for each step and kind of seconds; return the exit code, which wall seconds decide."""
    print(f"{'step':<20}{'before s':>10}{'now s':>10}{'ratio':>8}   before / now, each")
    ratios = [_ratio(what, old, times["now"][what], 0, "wall") for what, old in times["before"].items()]
    for what, old in times["before"].items():
        _ratio(what, old, times["now"][what], 1, "processor")
    print(f"at most x {BAR}")
    return int(max(ratios) > BAR)


def _ratio(what: str, before: list[Cost], now: list[Cost], kind: int, name: str) -> float:
    """Print one step's medians of one kind of seconds; return their ratio."""
    old, new = ([cost[kind] for cost in side] for side in (before, now))
    ratio = statistics.median(new) / statistics.median(old)
    each = " / ".join(" ".join(f"{seconds:.1f}" for seconds in side) for side in (old, new))
    medians = f"{statistics.median(old):>10.1f}{statistics.median(new):>10.1f}"
    print(f"{f'{what} {name}':<20}{medians}{ratio:>8.2f}   {each}")
    return ratio


if __name__ == "__main__":
    raise SystemExit(main())
