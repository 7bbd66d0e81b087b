"""Compares one driver build for a fleet with DKMS on every node, and with a shell script on every node.

    scripts/bench modules [--nodes 1 2 4 8] [--ways once dkms script]

Each way starts from equal new nodes, all at once, without a reboot, from a warm package cache, with Debian's
real 535 and its real compiler. The script installs the same packages, writes the same files and sets the same
holds as gpuprov. Wall time is the operator's; CPU seconds are those of the nodes and of gpuprov.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import yaml

from gpuprov.errors import Exit
from gpuprov.model.lock import LockedGroup, read_lock
from gpuprov_lab import Lab, Node
from tests.bench._by_hand import ByHand, Chosen, begin
from tests.bench._processor import processor_s
from tests.lab.command_line import gpuprov
from tests.lab.stub_compiler import play_compiler

BAR = 0.5
"""Limit of wall time of `once` relative to the script, at four nodes."""


class Subject:
    """A lab, a folder with the fleet, and an administrator's equivalent by hand."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.by_hand = self._by_hand()

    def fresh(self, count: int) -> list[Node]:
        """Start empty nodes."""
        nodes = self.lab.up(gpu="a100x4", names=[f"node{number + 1}" for number in range(count)])
        for node in nodes:
            begin(node)
        return nodes

    def lock(self, build: str) -> LockedGroup:
        """Write a fleet of the existing nodes and lock it; the module store is empty then."""
        fleet = yaml.safe_load(self.lab.fleet("hgx-a100-4"))
        [group] = fleet["groups"].values()
        group["stack"] = {"repository": "distribution", "driver": "535", "module_build": build}
        group["stack"] |= {"builder": "node1"} if build == "once" else {}
        (self.folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
        (self.folder / "fleet.lock.yml").unlink(missing_ok=True)
        gpuprov(self.folder, "lock")
        shutil.rmtree(self.folder / "state/gpuprov/modules", ignore_errors=True)
        [locked] = read_lock(self.folder / "fleet.lock.yml").groups.values()
        return locked

    def apply(self) -> None:
        """Run `gpuprov apply`, without a reboot."""
        gpuprov(self.folder, "apply", "--yes", "--no-verify", code=Exit.DRIFT)

    def by_script(self, nodes: list[Node]) -> None:
        """Run the same script on all nodes at once."""
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(self.by_hand.by_script, nodes))

    def _by_hand(self) -> ByHand:
        """Return the steps of a node provisioned with a stub compiler; this also fills the package cache."""
        [model] = self.fresh(1)
        before, group = Chosen.on(model), self.lock("dkms")
        play_compiler(model, group.components.driver.version)
        self.apply()
        by_hand = ByHand.of(model, group, before)
        self.lab.down([model.name])
        return by_hand


def main() -> int:
    """Measure the ways to bring modules to nodes, and print them; return 1 if `once` is too slow
    for 4 nodes.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--ways", nargs="+", default=["script", "once", "dkms"])
    options = parser.parse_args()
    ratios: dict[int, float] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuprov-bench-")))
        lab = stack.enter_context(Lab(f"bench-modules-{os.getpid()}"))
        subject = Subject(lab, folder)
        print(f"{'nodes':>5}  {'way':<8}{'wall s':>8}{'CPU s':>8}  without gcc")
        for count in options.nodes:
            walls = {way: measured(subject, way, count) for way in options.ways}
            if {"once", "script"} <= walls.keys():
                ratios[count] = walls["once"] / walls["script"]
                print(f"{count:>5}  once against the script, wall: x {ratios[count]:.2f}")
    print(f"at 4 nodes at most x {BAR}")
    return int(ratios.get(4, 0.0) > BAR)


def measured(subject: Subject, way: str, count: int) -> float:
    """Return the wall seconds of one way on this many nodes; print all figures."""
    nodes = subject.fresh(count)
    work: Callable[[], object] = partial(subject.by_script, nodes)
    if way != "script":
        subject.lock(way)
        work = subject.apply
    wall, cpu = time.perf_counter(), processor_s(subject.lab)
    work()
    wall, cpu = time.perf_counter() - wall, processor_s(subject.lab) - cpu
    bare = sum(not node.run("command -v gcc", check=False).stdout for node in nodes)
    print(f"{count:>5}  {way:<8}{wall:>8.0f}{cpu:>8.0f}  {bare} of {count}")
    subject.lab.down([node.name for node in nodes])
    return wall


if __name__ == "__main__":
    raise SystemExit(main())
