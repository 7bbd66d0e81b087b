"""Measures time and memory of lock, list and generate for a growing number of hosts.

    scripts/bench inventory [--hosts 10000] [--steps 3]

Every figure is a separate process, as an operator starts it; memory is its maximum. The fleet's packages come
from a mirror on disk. Growth is linear if the milliseconds for each host stay about the same.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PROFILES = ("hgx-h100-8", "hgx-h200-8", "l40s-8", "inference-l4")
HOSTS_A_GROUP = 500


def main() -> int:
    """Measure time and memory of locking and listing a large fleet, and print them."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--hosts", type=int, default=10_000)
    arguments.add_argument("--steps", type=int, default=3)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuprov-bench-") as folder:
        # In a separate process: measured commands inherit the size of this one.
        builder = multiprocessing.Process(target=build_mirror, args=(Path(folder),))
        builder.start()
        builder.join()
        repository = Path(folder, "repository").read_text()
        say("hosts", *(f"{what:>22}" for what in ("lock", "inventory list", "inventory generate", "Ansible")))
        for step in range(1, options.steps + 1):
            count = options.hosts * step // options.steps
            place = Path(folder, str(count))
            place.mkdir()
            (place / "fleet.yml").write_text(fleet(count, repository))
            say(f"{count:>5}", *(figure(*measured, count) for measured in measure(place)))
    return 0


def build_mirror(folder: Path) -> None:
    """Write a mirror of NVIDIA's repository, and its entry for a fleet file."""
    from gpuprov.catalog import load
    from gpuprov_lab.mirror import nvidia
    from gpuprov_lab.mirror.key import signing_key

    with signing_key() as key:
        mirror = nvidia.build(folder / "mirror", load(), ["ubuntu24.04"], key=key)
    (folder / "repository").write_text(f"{{url: '{mirror.cuda()}', key: {mirror.key}}}")


def measure(place: Path) -> Iterator[tuple[float, int]]:
    """Yield seconds and KiB of each command."""
    gpuprov = [sys.executable, "-m", "gpuprov"]
    yield timed([*gpuprov, "lock"], place)
    yield timed([*gpuprov, "inventory", "list"], place)
    yield timed([*gpuprov, "inventory", "generate", "out"], place)
    ansible = str(Path(sys.executable).with_name("ansible-inventory"))
    yield timed([ansible, "-i", "out", "--list"], place)


def timed(command: list[str], place: Path) -> tuple[float, int]:
    """Return wall seconds and maximum resident size of a command.

    Raises:
        RuntimeError: it failed.
    """
    begun = time.perf_counter()
    pid = os.posix_spawnp(
        "/bin/sh", ["sh", "-c", 'cd "$0" && exec "$@" >stdout 2>stderr', str(place), *command], os.environ
    )
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)}: {(place / 'stderr').read_text()}")
    return time.perf_counter() - begun, usage.ru_maxrss


def fleet(count: int, repository: str) -> str:
    """Return a fleet file with groups of 500 hosts that have an address each."""
    lines = [f"repositories: {{nvidia: {repository}}}", "groups:"]
    for first in range(0, count, HOSTS_A_GROUP):
        number = first // HOSTS_A_GROUP
        lines += [f"  rack{number}:", f"    profile: {PROFILES[number % len(PROFILES)]}"]
        lines += ["    os: ubuntu24.04", f"    site: room{number % 3}", "    hosts:"]
        hosts = range(first, min(first + HOSTS_A_GROUP, count))
        lines += [f"      gpu{host:05}: 10.{host >> 16}.{host >> 8 & 255}.{host & 255}" for host in hosts]
    return "\n".join(lines) + "\n"


def figure(seconds: float, kib: int, count: int) -> str:
    """Return figures as text: `1.23 s  0.12 ms/host  85 MiB`."""
    return f"{seconds:6.2f} s {seconds / count * 1000:6.3f} ms {kib / 1024:4.0f} M"


def say(*cells: str) -> None:
    """Print one row."""
    print("  ".join(cells))


if __name__ == "__main__":
    sys.exit(main())
