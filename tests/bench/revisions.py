"""Compares this checkout with another revision: the same steps on equal new nodes, in one run.

    scripts/bench revisions --against REVISION [--rounds 2] [--nodes 4] [--once]

Each revision locks with its own code, applies to new nodes with a module that one builder compiles and
reboots them (`once`; DKMS is real, a stub replaces the compiler), applies changed clocks (`apply`), applies
again without changes (`again`), runs drift (`drift`) and upgrades to another driver (`upgrade`). Both have
nodes of their own, and take turns in each step: the speed of a shared machine changes within minutes. The
order of the revisions changes from turn to turn and from round to round: an even number of rounds is fair.
--once leaves out all steps but the first, whose time varies most (packages of new nodes), for more rounds of
it. The ratio is that of the medians. Processor seconds are those of the nodes and of gpuprov; other load on
the machine changes them less.
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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
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
REPEATS = {"apply": 4, "again": 8, "drift": 12}
"""Repetitions of short steps in a round; other steps run once."""
GRAPHICS_MHZ = (1395, 1380)
"""Clocks of the graphics engine that `apply` sets in turn; the GPUs of the lab's nodes offer both."""
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
        """Run a command of this revision in `folder`, with modules that an earlier one has compiled.

        Raises:
            AssertionError: another exit code, or a traceback.
        """
        as_installed = ("env", "-u", "PYTHONDONTWRITEBYTECODE", f"PYTHONPATH={self.tree}")
        program = (*as_installed, sys.executable, "-m", "gpuprov")
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
    here = Path(__file__).parents[2]
    with ExitStack() as stack:
        before = Revision("before", stack.enter_context(worktree(here, options.against)))
        sides = [Side.enter(stack, each) for each in (before, Revision("now", here))]
        for turn in range(options.rounds):
            measure(sides[:: 1 if turn % 2 == 0 else -1], options.nodes, only_once=options.once)
    return report(*(side.times for side in sides))


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


@dataclass
class Side:
    """A revision with a lab, a folder for its fleet and its costs."""

    revision: Revision
    lab: Lab
    folder: Path
    times: Times = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def enter(cls, stack: ExitStack, revision: Revision) -> Side:
        """Make the lab and the folder, which are removed with the stack."""
        lab = stack.enter_context(Lab(f"bench-revisions-{os.getpid()}-{revision.name}"))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuprov-bench-"))
        return cls(revision, lab, Path(folder))

    def renew(self, count: int) -> None:
        """Replace the nodes by new ones, and lock two drivers for them."""
        self.lab.down()
        for node in self.lab.up(gpu="a100x4", names=[f"node{number + 1}" for number in range(count)]):
            play_compiler(node, NEWER, OLDER)
            begin(node)
        self.lock(OLDER)
        (self.folder / "fleet.lock.yml").replace(self.folder / "other.lock.yml")
        self.lock(NEWER)

    def lock(self, driver: str, **settings: Any) -> None:
        """Write a fleet of the lab's nodes, and lock it with the revision's own code."""
        fleet = yaml.safe_load(self.lab.fleet("hgx-a100-4"))
        [group] = fleet["groups"].values()
        group["stack"] = {
            "repository": "distribution",
            "driver": driver,
            "module_build": "once",
            "builder": "node1",
        }
        group["settings"] = {**group.get("settings", {}), **settings}
        fleet |= {"reboot": {"allowed": True, "timeout_s": 60}, "rollout": {"settle_s": 0}}
        (self.folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
        self.revision.run(self.folder, "lock")

    def step(self, what: str, *words: str) -> None:
        """Measure a command, and print its cost."""
        wall, processor = time.perf_counter(), processor_s(self.lab)
        self.revision.run(self.folder, *words)
        cost = time.perf_counter() - wall, processor_s(self.lab) - processor
        self.times[what].append(cost)
        print(f"  {self.revision.name} {what}: {cost[0]:.1f} s, processor {cost[1]:.1f} s", flush=True)


def measure(sides: Sequence[Side], count: int, *, only_once: bool) -> None:
    """Run the steps on new nodes of both sides, or only the first step."""
    for side in sides:
        side.renew(count)
    for side, _ in turns(sides, "once"):
        side.step("once", "apply", "--yes")
    if only_once:
        return
    for side, turn in turns(sides, "apply"):
        side.lock(NEWER, clocks={"graphics": GRAPHICS_MHZ[turn % 2], "memory": 1593})
        side.step("apply", "apply", "--yes")
    for what, *words in (
        ("again", "apply", "--yes"),
        ("drift", "drift"),
        ("upgrade", "upgrade", "--to", "other.lock.yml", "--yes"),
    ):
        for side, _ in turns(sides, what):
            side.step(what, *words)


def turns(sides: Sequence[Side], what: str) -> Iterator[tuple[Side, int]]:
    """Yield each side and the number of the turn, for all repetitions of a step."""
    for turn in range(REPEATS.get(what, 1)):
        yield from ((side, turn) for side in sides[:: 1 if turn % 2 == 0 else -1])


def report(before: Times, now: Times) -> int:
    """Print a line for each step and kind of seconds; return the exit code, which wall seconds decide."""
    print(f"{'step':<20}{'before s':>10}{'now s':>10}{'ratio':>8}   before / now, each")
    ratios = [_ratio(what, old, now[what], 0, "wall") for what, old in before.items()]
    for what, old in before.items():
        _ratio(what, old, now[what], 1, "processor")
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
