"""Compares `gpuprov apply` with a shell script that does the same by hand.

    scripts/bench apply [--full [--stub]] [--system rhel9] [--playbook] [--mitogen]
                        [--rounds 2] [--together]

Both start on equal new nodes, without a reboot, from a warm package cache. The script installs the same
packages at the same versions, builds the same modules, writes the same files (read from a node that gpuprov
provisioned), enables and starts the same units, and sets the same holds. The order changes from round to
round; --together starts both at the same moment, so that other load on the machine affects both.

Without --full the node gets Debian's driver and its settings. With --full it also gets CUDA, cuDNN, NCCL,
Docker, containerd, the container toolkit, DCGM, tools, tuning, SSH and firewall, with NVIDIA's packages from
the mirror. DKMS compiles the driver, except on the model that the script is taken from. With --stub nothing
is compiled, because the driver comes from the mirror too, so that only overhead is compared; only this can be
done on another --system, whose script has its commands (dnf for rhel9). With --playbook Ansible runs the
script's steps too: one task for each file and command, and no more; gpuprov has a bar against it. With
--mitogen gpuprov runs once more on another node, as if installed as gpuprov[fast].
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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Protocol
from unittest.mock import patch

from gpuprov.apply.strategy import OLDEST, REQUEST
from gpuprov.errors import Exit
from gpuprov.model.lock import LockedGroup, read_lock
from gpuprov_lab import Lab, Node
from tests.bench._bars import Bar, verdict
from tests.bench._by_hand import ByHand, Chosen, begin
from tests.bench._commands import APT, Commands, commands_of
from tests.bench._costs import costs, dearest, table
from tests.campaign._roles_fleet import STACKS, SWITCHED, Board, Fleet, fleet_of, new_node
from tests.lab.command_line import gpuprov
from tests.lab.stub_compiler import play_compiler

SYSTEM = "debian12"
"""System of the nodes, unless --system names another."""
# Without switches: Debian has no fabric manager, and the mirror has none for Debian's driver.
COMPILED = Board(
    machine="l40sx4",
    model="L40S",
    gpus=4,
    stack={"repository": "distribution", "driver": "535.309.01", "dcgm": "auto"},
    settings={"clocks": {"graphics": 2520, "memory": 9001}, "power_limit": 300},
)

BAR, BAR_STUB = 1.2, 2.0
BAR_PLAYBOOK = 1.1
"""Against Ansible without checks: where all packages are small stubs, its cost of a task exceeds BAR_STUB."""
REST_S = 30
"""Pause in seconds before each run.

A virtual machine has bursts, which starting nodes uses up (21 s became 31). Even so the first run costs 5 s
more: only an even number of rounds is fair.
"""


class Stack(Protocol):
    """Components that are installed on nodes.

    `compiled` states whether a compiler has work; on the model a stub replaces it. `commands` are those of
    the nodes' system.
    """

    compiled: bool
    commands: Commands

    def fresh(self, name: str) -> Node:
        """Start an empty node."""

    def lock(self, node: Node) -> LockedGroup:
        """Write a fleet of this node, the only one at this point, and lock it."""

    def apply(self) -> None:
        """Run `gpuprov apply`, without a reboot."""


class Driver:
    """Debian's driver."""

    compiled = True
    commands = APT

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab, self._folder = lab, folder

    def fresh(self, name: str) -> Node:
        """Return a new node of the lab."""
        [node] = self._lab.up(gpu="a100x4", names=[name])
        return node

    def lock(self, node: Node) -> LockedGroup:
        """Write a fleet and its lock; return the node's group."""
        (self._folder / "fleet.yml").write_text(self._lab.fleet("hgx-a100-4"))
        gpuprov(self._folder, "lock")
        [group] = read_lock(self._folder / "fleet.lock.yml").groups.values()
        return group

    def apply(self) -> None:
        """Apply the lock; a reboot is left."""
        gpuprov(self._folder, "apply", "--yes", code=Exit.DRIFT)  # a reboot is pending


class Full:
    """Every component that gpuprov can install, from the mirror."""

    def __init__(self, stack: ExitStack, lab: Lab, folder: Path, board: Board, system: str) -> None:
        self.compiled, self.commands, self._system = board is COMPILED, commands_of(system), system
        self._first: Node | None = new_node(lab, system, "model", board=board)
        self._fleet: Fleet = fleet_of(stack, lab, folder, {system: self._first}, {}, board)

    def fresh(self, name: str) -> Node:
        """Return a new node with the fleet's board; at the first call one that exists already."""
        # Building the mirror needs a node, which is the first one returned.
        node, self._first = self._first, None
        return node or new_node(self._fleet.lab, self._system, name, board=self._fleet.board)

    def lock(self, node: Node) -> LockedGroup:
        """Make a node the fleet's only one; return its group in the first lock."""
        self._fleet.nodes = {self._system: node}
        [group] = self._fleet.state(0).groups.values()
        return group

    def apply(self) -> None:
        """Apply the lock without verification, and print the seconds of its tasks; exit if a role failed."""
        runs = self._fleet.folder / "state/gpuprov/runs"
        before = set(runs.glob("*"))
        start = time.perf_counter()
        run = self._fleet.apply("--no-verify")
        whole = time.perf_counter() - start
        if any(run.failed.values()):
            raise SystemExit(f"gpuprov apply: {dict(run.failed)}")
        files = [path for folder in set(runs.glob("*")) - before for path in folder.rglob("*-events.jsonl")]
        print("\n".join([*table(costs(files), whole), "the longest tasks:", *dearest(files)]))


def main() -> int:
    """Measure and print; return 1 if gpuprov misses its bar."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--stub", action="store_true")
    parser.add_argument("--system", choices=list(STACKS), default=SYSTEM, help="with --full --stub")
    parser.add_argument("--playbook", action="store_true")
    parser.add_argument("--mitogen", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--together", action="store_true")
    options = parser.parse_args()
    if options.system != SYSTEM and not (options.full and options.stub):
        parser.error(f"--system {options.system} needs --full --stub: only {SYSTEM} has a driver to compile")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuprov-bench-")))
        folder.chmod(0o755)
        lab = stack.enter_context(Lab(f"bench-apply-{os.getpid()}"))
        board = SWITCHED if options.stub else COMPILED
        subject = Full(stack, lab, folder, board, options.system) if options.full else Driver(lab, folder)
        more = {"playbook": options.playbook, "mitogen": options.mitogen}
        times = measure(lab, subject, options.rounds, together=options.together, **more)
    return report(times, BAR_STUB if options.stub else BAR)


def report(times: Mapping[str, Sequence[float]], bar: float) -> int:
    """Print a line for each way; return the exit code: the bars are for gpuprov without Mitogen."""
    ratios = {}
    for what, seconds in times.items():
        listed = " ".join(f"{each:.0f}" for each in seconds)
        ratios[what] = statistics.median(seconds) / statistics.median(times["shell script"])
        print(f"{what:<16}{statistics.median(seconds):>8.1f} s   x {ratios[what]:.2f}   ({listed})")
    print(f"gpuprov apply: at most x {bar}")
    ours = ratios["gpuprov apply"]
    bars = [Bar("gpuprov apply / shell script", ours, most=bar)]
    if playbook := ratios.get("plain playbook"):
        bars.append(Bar("gpuprov apply / plain playbook", ours / playbook, most=BAR_PLAYBOOK))
    return verdict(bars)


def measure(
    lab: Lab, subject: Stack, rounds: int, *, playbook: bool, mitogen: bool, together: bool
) -> dict[str, list[float]]:
    """Return the seconds of each way, one figure for each round."""
    times: dict[str, list[float]] = defaultdict(list)
    by_hand = done_by_hand(lab, subject)
    for turn in range(rounds):
        ours = fresh(subject, "ours")
        subject.lock(ours)
        nodes = [ours, *(fresh(subject, f"other{number}") for number in range(1 + playbook))]
        ways: dict[str, Callable[[], object]] = {
            "gpuprov apply": subject.apply,
            "shell script": partial(by_hand.by_script, nodes[1]),
        }
        if playbook:
            ways["plain playbook"] = partial(by_hand.by_playbook, lab, nodes[2])
        order = list(ways) if turn % 2 == 0 else list(reversed(ways))
        with ThreadPoolExecutor(len(ways) if together else 1) as pool:
            running = {what: pool.submit(timed, what, ways[what]) for what in order}
        for what, seconds in running.items():
            times[what].append(seconds.result())
        if missing := by_hand.difference(nodes[1]):
            raise SystemExit(f"the script's node is not as gpuprov's: it lacks {', '.join(missing)}")
        lab.down([node.name for node in nodes])
        if mitogen:
            times["with Mitogen"].append(by_mitogen(lab, subject))
    return times


def by_mitogen(lab: Lab, subject: Stack) -> float:
    """Return the seconds of gpuprov on a new node, with Mitogen in Python's search path."""
    node = fresh(subject, "ours")
    subject.lock(node)
    with tempfile.TemporaryDirectory(prefix="gpuprov-bench-") as folder:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", folder, f"mitogen=={OLDEST}"]
        subprocess.run(pip, check=True)
        with patch.dict(os.environ, {"PYTHONPATH": folder, REQUEST: "1"}):
            seconds = timed("with Mitogen", subject.apply)
    lab.down([node.name])
    return seconds


def done_by_hand(lab: Lab, subject: Stack) -> ByHand:
    """Return the steps of a node that gpuprov provisions; afterwards every package is in the lab's cache."""
    model = fresh(subject, "model")
    before = Chosen.on(model, subject.commands)
    group = subject.lock(model)
    if subject.compiled:
        play_compiler(model, group.components.driver.version)
    subject.apply()
    by_hand = ByHand.of(model, group, before, subject.commands)
    lab.down([model.name])
    return by_hand


def fresh(subject: Stack, name: str) -> Node:
    """Start an empty node with a record of the time."""
    node = subject.fresh(name)
    begin(node)
    return node


def timed(what: str, work: Callable[[], object]) -> float:
    """Return the seconds of a run; they are printed at once, so that a later failure does not lose them."""
    os.sync()
    time.sleep(REST_S)
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    print(f"  {what}: {seconds:.0f} s")
    return seconds


if __name__ == "__main__":
    raise SystemExit(main())
