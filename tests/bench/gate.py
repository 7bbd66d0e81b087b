"""Compares the gate of an upgrade with drift of the same nodes, in turns.

    scripts/bench gate [--targets 200] [--rounds 5]

The targets are addresses of one provisioned lab node; the upgrade would be to an older driver of the archive.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

import yaml

from gpuprov_lab import Lab
from tests.bench._bars import Bar, verdict
from tests.bench.drift import FORKS, gpuprov
from tests.bench.targets import many_addresses, write_targets
from tests.lab.command_line import gpuprov as once
from tests.lab.provisioned_node import provision
from tests.lab.upgrade_fleet import OLDER

WAYS = {
    "gpuprov drift": ("drift",),
    "gpuprov upgrade --plan": ("upgrade", "--to", "new.lock.yml", "--plan"),
}


def main() -> int:
    """Measure and print; return 1 if the gate misses its limit."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--targets", type=int, default=200)
    arguments.add_argument("--rounds", type=int, default=5)
    options = arguments.parse_args()
    with Lab(f"bench-gate-{os.getpid()}") as lab, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        node = provision(lab, folder)
        write_locks(lab, folder, options.targets)
        with many_addresses(node):
            bar = compare(folder, options.targets, options.rounds)
    return verdict([bar])


def write_locks(lab: Lab, folder: Path, count: int) -> None:
    """Write `fleet.lock.yml` with the nodes' driver, and `new.lock.yml` with the older driver."""
    now = (folder / "fleet.lock.yml").read_text()
    fleet = yaml.safe_load((folder / "fleet.yml").read_text())
    [group] = fleet["groups"].values()
    group["stack"]["driver"] = OLDER
    (folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
    once(folder, "lock")
    (folder / "fleet.lock.yml").rename(folder / "node.lock.yml")
    write_targets(lab, folder, count)
    (folder / "fleet.lock.yml").rename(folder / "new.lock.yml")
    (folder / "node.lock.yml").write_text(now)
    write_targets(lab, folder, count)


def compare(folder: Path, count: int, rounds: int) -> Bar:
    """Run each command once for the caches, then in turns; print the medians, and return the gate's bar."""
    for words in WAYS.values():
        gpuprov(folder, *words)
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, words in WAYS.items():
            seconds[name].append(gpuprov(folder, *words).seconds)
    print(f"{count} targets, {FORKS} at a time, medians of {rounds} rounds")
    for name, found in seconds.items():
        listed = " ".join(f"{each:.2f}" for each in found)
        print(f"  {name:<24}{statistics.median(found):>7.2f} s  ({listed})")
    bar = ratio(*(statistics.median(found) for found in seconds.values()))
    print(f"  {bar.name:<24}{bar.figure:>7.2f}    ({bar.limit})")
    return bar


def ratio(drift: float, gate: float) -> Bar:
    """Return the gate's ratio to drift, with its limit."""
    return Bar("gate / drift", gate / drift, most=2)


if __name__ == "__main__":
    sys.exit(main())
