"""Compares many targets by one process and by workers on this machine, and extrapolates to large fleets.

    scripts/bench scale [--targets 1000] [--verify-targets 100] [--forks 16] [--svg docs/scale.svg]
    scripts/bench scale --coordinator          # without a lab: only the coordinator's cost

The targets are addresses of one provisioned lab node, which uses the same processors: `on the node` is its
part. The coordinator's cost is measured for 10,000 and 100,000 names with workers that answer at once as for
a node in sync. The table of large fleets is calculated from these figures: a fleet takes as long as its
workers compute, its coordinator computes, or its shards wait for their nodes, whichever is the longest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpuprov.drift.judge import NodeDrift
from gpuprov.ssh.dispatch import Dispatch
from gpuprov.ssh.workers import hire
from gpuprov.ssh.workers.cluster import THREADS
from gpuprov_lab import Lab
from tests.bench._bars import Bar, verdict
from tests.bench._curves import draw
from tests.bench.targets import many_addresses, write_targets
from tests.lab.command_line import PROGRAM, with_own_state
from tests.lab.provisioned_node import provision

WAYS = {"one process": 0, "local:1": 1, "local:2": 2}
"""Number of workers; each has two shards at a time, and `--forks` nodes of each shard."""
LARGE = (10_000, 100_000)
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
NODE_S = 1.5
"""Seconds of a distant node's answer: a handshake across a continent, and the probe."""
SHARD = 32
TICK_S = float(os.sysconf("SC_CLK_TCK"))


@dataclass
class Cost:
    """One call: seconds of wall time, of its processes and of the node, and each process's maximum MiB."""

    wall: float = 0.0
    processor: float = 0.0
    on_node: float = 0.0
    memory: dict[int, float] = field(default_factory=dict)

    def text(self, count: int) -> str:
        """Return the figures as text."""
        coordinator, *workers = self.memory.values()
        others = f", a worker {max(workers):.0f}" if workers else ""
        return (
            f"{self.wall:7.1f} s, {self.processor / count * 1000:5.0f} ms of CPU a node here,"
            f" {self.on_node / count * 1000:4.0f} on the node; {coordinator:.0f} MiB{others}"
        )


def main() -> int:
    """Measure and print; return 1 if a ratio misses its limit."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--targets", type=int, default=1000)
    arguments.add_argument("--verify-targets", type=int, default=100)
    arguments.add_argument("--forks", type=int, default=16)
    arguments.add_argument("--rounds", type=int, default=1)
    arguments.add_argument("--coordinator", action="store_true", help="no lab; --drift-ms states the rest")
    arguments.add_argument("--drift-ms", type=float, default=0.0, help="CPU of a worker for one drift")
    arguments.add_argument("--svg", type=Path)
    options = arguments.parse_args()
    drift_s, bars = options.drift_ms / 1000, []
    if not options.coordinator:
        drift_s, bars = here(options.targets, options.verify_targets, options.forks, options.rounds)
    coordinator_s = {count: coordinate(count) for count in LARGE}
    for count, seconds in coordinator_s.items():
        print(f"coordinator, {count} nodes: {seconds:.1f} s, {seconds / count * 1e6:.0f} us a node")
    if drift_s:
        large(drift_s, coordinator_s, options.svg)
    return verdict(bars)


def here(targets: int, verified: int, forks: int, rounds: int) -> tuple[float, list[Bar]]:
    """Measure drift and verify by each way; return a worker's processor seconds for one drift, and ratios."""
    drift_s, bars = 0.0, []
    with Lab(f"bench-scale-{os.getpid()}") as lab, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        node = provision(lab, folder)
        (folder / "fleet.lock.yml").rename(folder / "node.lock.yml")
        with many_addresses(node):
            for verb, count in (("drift", targets), ("verify", verified)):
                write_targets(lab, folder, count)
                print(f"{verb} of {count} targets, {forks} at a time")
                walls: dict[str, list[float]] = {}
                for number in range(rounds * len(WAYS)):
                    way = list(WAYS)[number % len(WAYS)]
                    words = by(WAYS[way], forks)
                    cost = measured(folder, node.machine, verb, *words)
                    walls.setdefault(way, []).append(cost.wall)
                    print(f"  {way:<12}{cost.text(count)}")
                    if (verb, way) == ("drift", "local:1"):
                        drift_s = cost.processor / count
                bars.append(ratio(verb, min(walls["local:1"]), min(walls["one process"])))
                print(f"  {bars[-1].name} {bars[-1].figure:.2f}   ({bars[-1].limit})")
    return drift_s, bars


def ratio(verb: str, workers: float, process: float) -> Bar:
    """Return the ratio of one worker's seconds to those of one process, with its limit."""
    return Bar(f"{verb}: local:1 / one process", workers / process, most=1.1)


def by(workers: int, forks: int) -> tuple[str, ...]:
    """Return the options for this many workers, which together visit as many nodes at once as one process."""
    if not workers:
        return ("-f", str(forks))
    return ("--workers", f"local:{workers}", "-f", str(max(1, forks // (workers * THREADS))))


def measured(folder: Path, machine: str, *words: str) -> Cost:
    """Measure one command that finds no difference."""
    cost, before, begun = Cost(), on_node(machine), time.monotonic()
    child = subprocess.Popen(
        [*PROGRAM, *words],
        cwd=folder,
        env=with_own_state(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    over = threading.Event()
    spent: dict[int, float] = {}

    def look() -> None:
        """Record the most processor time and memory of each process five times a second, until the end."""
        while not over.wait(0.2):
            for process in family(child.pid):
                spent[process] = max(spent.get(process, 0.0), processor_s(process))
                cost.memory[process] = max(cost.memory.get(process, 0.0), memory_mib(process))

    thread = threading.Thread(target=look)
    thread.start()
    out, _ = child.communicate()
    over.set()
    thread.join()
    if child.returncode:
        raise SystemExit(f"gpuprov {' '.join(words)}: exit {child.returncode}\n{out.decode()[-2000:]}")
    cost.wall, cost.processor = time.monotonic() - begun, sum(spent.values())
    cost.on_node = on_node(machine) - before
    return cost


def family(process: int) -> list[int]:
    """Return a process and all below it, also those that a thread started: Dask's workers."""
    found = [process]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, children.read_text().split())
    return found


def processor_s(process: int) -> float:
    """Return the processor seconds of a process; 0 if it has ended."""
    try:
        result = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, result[11:13])) / TICK_S


def memory_mib(process: int) -> float:
    """Return the resident memory of a process in MiB."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


def on_node(machine: str) -> float:
    """Return the processor seconds of a node from its control group, of either version."""
    one = next(Path("/sys/fs/cgroup/cpuacct").glob(f"gpuprov-lab/{machine}/cpuacct.usage"), None)
    if one:
        return int(one.read_text()) / 1e9
    two = next(Path("/sys/fs/cgroup").glob(f"gpuprov-lab/{machine}/cpu.stat"))
    [line] = [line for line in two.read_text().splitlines() if line.startswith("usage_usec")]
    return int(line.split()[1]) / 1e6


def in_sync(names: Mapping[str, None]) -> dict[str, NodeDrift]:
    """Return a worker's answer for nodes in sync."""
    return {name: NodeDrift(name, "in_sync") for name in names}


def coordinate(count: int) -> float:
    """Return the coordinator's processor seconds for this many nodes, whose workers have no work."""
    names = dict.fromkeys(f"gpu{number:06}" for number in range(count))
    with hire("local:2", {}) as crew:
        begun = time.process_time()
        found = dict(Dispatch(crew=crew).spread(lambda some: in_sync, names, answer=NodeDrift))
        spent = time.process_time() - begun
    assert len(found) == count
    return spent


def large(drift_s: float, coordinator_s: Mapping[int, float], svg: Path | None) -> None:
    """Print the times of large fleets by the number of workers with one processor each."""
    curves: dict[str, list[tuple[float, float]]] = {}
    print(f"{'workers':>8}" + "".join(f"{count:>12} nodes" for count in LARGE))
    for workers in WORKERS:
        line = f"{workers:>8}"
        for count in LARGE:
            seconds = estimated(count, workers, drift_s, coordinator_s[count])
            curves.setdefault(f"{count:,} nodes", []).append((workers, seconds))
            line += f"{seconds:>16.0f} s"
        print(line)
    for count in LARGE:
        most = count * drift_s / coordinator_s[count]
        print(f"{count} nodes: the coordinator is the limit beyond {most:.0f} workers")
    if svg:
        svg.write_text(draw("Drift of large fleets", "workers, one processor each", "seconds", curves))
        sys.stdout.write(f"{svg} written\n")


def estimated(count: int, workers: int, drift_s: float, coordinator_s: float) -> float:
    """Return the estimated seconds: the longest computation, and the wait of the last shard."""
    waits = -(-count // (SHARD * 2 * workers)) * NODE_S
    return max(count * drift_s / workers, coordinator_s, waits) + NODE_S


if __name__ == "__main__":
    raise SystemExit(main())
