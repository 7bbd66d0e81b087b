"""Compares drift of many nodes with the cost of SSH, and with verify, Ansible's check mode and apply.

    scripts/bench drift [--targets 200] [--rounds 5] [--growth 10,50,200,500,1000]

Everything runs on this machine, nodes and controller on the same processors. The targets are addresses of one
provisioned lab node. `floor` is Paramiko threads that run `true` with the same number of forks; `probe` is
only the probe, as often and with the same concurrency, on the node without SSH. Ansible is measured in check
mode with two small numbers of targets, and extrapolated linearly.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import paramiko

from gpuprov.drift.probe_request import drift_parameters
from gpuprov.model.lock import Lock
from gpuprov.probe.payload import build
from gpuprov_lab import Lab, Node
from tests.bench._bars import Bar, verdict
from tests.bench.targets import many_addresses, write_targets
from tests.lab.command_line import PROGRAM, with_own_state
from tests.lab.provisioned_node import provision

FORKS = 16
"""Both sides share two processors: a higher number would only queue in the node's systemd."""
ANSIBLE_ON = (2, 8)
SLOW_ROUNDS = 3


@dataclass(frozen=True)
class Cost:
    """Wall seconds, and the maximum memory of a process in MiB."""

    seconds: float
    memory: float = 0.0


def main() -> int:
    """Measure and print; return 1 if a ratio misses its limit."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--targets", type=int, default=200)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--growth", default="10,50,200,500,1000")
    arguments.add_argument("--only-drift", action="store_true", help="leave out verify and Ansible")
    options = arguments.parse_args()
    with Lab(f"bench-drift-{os.getpid()}") as lab, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        node = provision(lab, folder)
        (folder / "fleet.lock.yml").rename(folder / "node.lock.yml")
        with many_addresses(node):
            bars = compare(lab, node, folder, options.targets, options.rounds)
            if not options.only_drift:
                bars += compare_slow(lab, folder, options.targets)
            grow(lab, folder, [int(count) for count in options.growth.split(",")])
    return verdict(bars)


def compare(lab: Lab, node: Node, folder: Path, count: int, rounds: int) -> list[Bar]:
    """Measure floor, probe, drift and an apply without changes in turns."""
    lock = write_targets(lab, folder, count)
    ways: dict[str, Callable[[], Cost]] = {
        "floor: Paramiko runs `true`": lambda: floor(lock),
        "probe alone, on the node": lambda: probes(node, lock, count),
        "gpuprov drift": lambda: gpuprov(folder, "drift"),
        "gpuprov apply, nothing to do": lambda: gpuprov(folder, "apply", "--yes", "--no-verify"),
    }
    for work in ways.values():
        work()  # fills caches of the node and of this machine
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, work in ways.items():
            costs[name].append(work())
    print(f"{count} targets, {FORKS} at a time, medians of {rounds} rounds")
    median = {name: statistics.median(each.seconds for each in found) for name, found in costs.items()}
    for name, found in costs.items():
        listed = " ".join(f"{each.seconds:.2f}" for each in found)
        memory = max(each.memory for each in found)
        print(
            f"  {name:<30}{median[name]:>7.2f} s"
            + (f"{memory:>6.0f} MiB" if memory else "")
            + f"  ({listed})"
        )
    bars = ratios(*median.values())
    for bar in bars:
        print(f"  {bar.name:<30}{bar.figure:>7.2f}   ({bar.limit})")
    return bars


def ratios(base: float, probe: float, drift: float, apply: float) -> list[Bar]:
    """Return the ratios of the medians, each with its limit."""
    return [
        Bar("drift / (1.5 floor + probe)", drift / (1.5 * base + probe), most=1),
        Bar("apply / drift", apply / drift, most=2),
    ]


def compare_slow(lab: Lab, folder: Path, count: int) -> list[Bar]:
    """Measure verify and Ansible's check mode, together with drift at the same time."""
    write_targets(lab, folder, count)
    turns = [
        (gpuprov(folder, "drift").seconds, gpuprov(folder, "verify").seconds) for _ in range(SLOW_ROUNDS)
    ]
    drift, verify = (statistics.median(each) for each in zip(*turns, strict=True))
    few, more = ANSIBLE_ON
    times = {}
    for number in ANSIBLE_ON:
        write_targets(lab, folder, number)
        times[number] = gpuprov(folder, "apply", "--full", "--check", "--yes", "--no-verify").seconds
    slope = (times[more] - times[few]) / (more - few)
    ansible = times[few] + slope * (count - few)
    bars = slow_ratios(drift, verify, ansible)
    by_verify, by_ansible = (f"{bar.figure:.1f} times drift ({bar.limit})" for bar in bars)
    print(f"  gpuprov verify                {verify:>7.1f} s, {by_verify}")
    print(
        "      measured: " + ", ".join(f"{slow:.1f} s beside a drift of {fast:.1f}" for fast, slow in turns)
    )
    measured = ", ".join(f"{seconds:.1f} s for {number}" for number, seconds in times.items())
    print(f"  Ansible --check, drawn out    {ansible:>7.1f} s, {by_ansible}")
    print(f"      measured: {measured}")
    return bars


def slow_ratios(drift: float, verify: float, ansible: float) -> list[Bar]:
    """Return how many times longer than drift the others take, each with its limit."""
    return [Bar("verify / drift", verify / drift, least=8), Bar("Ansible / drift", ansible / drift, least=20)]


def grow(lab: Lab, folder: Path, counts: list[int]) -> None:
    """Measure drift of an increasing number of targets."""
    print("growth")
    for count in counts:
        lock = write_targets(lab, folder, count)
        base, cost = floor(lock), gpuprov(folder, "drift")
        each = cost.seconds / count * 1000
        print(
            f"  {count:>5} targets{cost.seconds:>8.2f} s{each:>7.1f} ms each{cost.memory:>6.0f} MiB"
            f"   floor{base.seconds:>7.2f} s"
        )


def floor(lock: Lock) -> Cost:
    """Measure the minimum cost of SSH from Python."""
    [group] = lock.groups.values()
    key = paramiko.PKey.from_path(str(group.connection.identity_file))

    def visit(address: str) -> int:
        """Log in at an address, run `true`, and return its exit status."""
        with paramiko.SSHClient() as client:
            client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
            client.connect(address, username="root", pkey=key, look_for_keys=False, allow_agent=False)
            _, stdout, _ = client.exec_command("true")
            return stdout.channel.recv_exit_status()

    begun = time.perf_counter()
    with ThreadPoolExecutor(FORKS) as pool:
        codes = list(pool.map(visit, group.hosts.values()))
    assert not any(codes)
    return Cost(time.perf_counter() - begun)


def probes(node: Node, lock: Lock, count: int) -> Cost:
    """Measure the probe without SSH, once for each target."""
    [group] = lock.groups.values()
    payload = build(drift_parameters(group))
    node.run("cat >/root/probe", input=payload.stdin.decode())
    node.run("cat >/root/ask", input=f"{payload.command} </root/probe >/dev/null\n")
    begun = time.perf_counter()
    node.run(f"seq {count} | xargs -P {FORKS} -n 1 sh /root/ask")
    return Cost(time.perf_counter() - begun)


def gpuprov(folder: Path, *words: str) -> Cost:
    """Measure one gpuprov command, which must find no difference."""
    begun = time.perf_counter()
    with (folder / "said").open("w") as said:
        child = subprocess.Popen(
            [*PROGRAM, *words, "-f", str(FORKS)],
            cwd=folder,
            env=with_own_state(folder),
            stdout=said,
            stderr=said,
        )
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - begun
    if child.returncode:
        raise SystemExit(
            f"gpuprov {' '.join(words)}: exit {child.returncode}\n{(folder / 'said').read_text()}"
        )
    return Cost(seconds, used.ru_maxrss / 1024)


if __name__ == "__main__":
    sys.exit(main())
