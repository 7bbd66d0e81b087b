"""What the operator pays for gpuprov: `gpuprov apply` against a shell script that does the same by hand.

    scripts/bench apply [--rounds 2] [--together]

Both start on equal fresh nodes, without a reboot, from a warm package cache. The script installs the very
packages at the very versions, writes the very files (read from a node that gpuprov made), enables the same
units, sets the same holds. Which goes first changes from round to round; --together starts both at the same
moment, so that what else the machine does is shared by both.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from gpuprov.errors import Exit
from gpuprov.lab import Lab, Node
from gpuprov.lock import LockedGroup, read_lock
from tests.lab.compiler import play_compiler

NEW_FILES = (
    "find /etc /usr/local/sbin /var/lib/gpuprov -type f -newer /root/.bench-start"
    " '(' -path '*gpuprov*' -o -path '*nvidia-persistenced.service.d*' ')'"
)
UNITS = (
    "systemctl list-unit-files --state=enabled --no-legend 'gpuprov-*' 'nvidia-persistenced*' | cut -d' ' -f1"
)


def main() -> int:
    """Measure and print."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument("--together", action="store_true")
    options = arguments.parse_args()
    with Lab(f"bench-apply-{os.getpid()}") as lab, tempfile.TemporaryDirectory() as folder:
        times = measure(lab, Path(folder), options.rounds, together=options.together)
    for what, seconds in times.items():
        listed = " ".join(f"{each:.0f}" for each in seconds)
        sys.stdout.write(f"{what:<16}{statistics.median(seconds):>8.1f} s   ({listed})\n")
    ours, by_hand = (statistics.median(seconds) for seconds in times.values())
    sys.stdout.write(f"{'ratio':<16}{ours / by_hand:>8.2f}\n")
    return 0


def measure(lab: Lab, folder: Path, rounds: int, *, together: bool) -> dict[str, list[float]]:
    """Seconds of each way, one figure a round."""
    times: dict[str, list[float]] = {"gpuprov apply": [], "shell script": []}
    script = model_script(lab, folder)
    for turn in range(rounds):
        ours, other = fresh(lab, folder, ["ours", "other"])
        ways: dict[str, Callable[[], object]] = {
            "gpuprov apply": partial(gpuprov, folder, "apply", "ours", "--yes", code=Exit.DRIFT),  # no reboot
            "shell script": partial(other.run, script, timeout=3600),
        }
        order = list(ways) if turn % 2 == 0 else list(reversed(ways))
        with ThreadPoolExecutor(len(ways) if together else 1) as pool:
            running = {what: pool.submit(timed, ways[what]) for what in order}
        for what, seconds in running.items():
            times[what].append(seconds.result())
        lab.down([ours.name, other.name])
    return times


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def fresh(lab: Lab, folder: Path, names: list[str]) -> list[Node]:
    """Nodes with nothing on them, and the fleet and lock that name them."""
    nodes = lab.up(gpu="a100x4", names=names)
    for node in nodes:
        node.run("touch /root/.bench-start; systemctl is-system-running --wait", check=False)
    (folder / "fleet.yml").write_text(lab.fleet("hgx-a100-4"))
    gpuprov(folder, "lock")
    return nodes


def model_script(lab: Lab, folder: Path) -> str:
    """The script by hand, of a node that gpuprov made; every package is in the lab's cache afterwards."""
    [model] = fresh(lab, folder, ["model"])
    [group] = read_lock(folder / "fleet.lock.yml").groups.values()
    play_compiler(model, group.components.driver.version)
    gpuprov(folder, "apply", "--yes", code=Exit.DRIFT)
    script = by_hand(model, group)
    lab.down([model.name])
    return script


def wanted(group: LockedGroup) -> str:
    """Arguments of apt-get that install what the lock says and what compiles it."""
    exact = [f"{name}={version}" for name, version in group.components.driver.closure.items()]
    names = shlex.join([*exact, "build-essential", "dkms"])
    return f"--no-install-recommends install {names} linux-headers-{group.setting('kernel')}"


def by_hand(model: Node, group: LockedGroup) -> str:
    """A shell script that makes of a fresh node what `model` is."""
    lines = ["set -e", "export DEBIAN_FRONTEND=noninteractive"]
    for path in model.run(NEW_FILES).stdout.split():
        text, mode = model.run(f"cat {path}").stdout, model.run(f"stat -c %a {path}").stdout.strip()
        lines += [
            f"mkdir -p {Path(path).parent}",
            f"cat >{path} <<'END'\n{text.rstrip()}\nEND",
            f"chmod {mode} {path}",
        ]
    units = model.run(UNITS).stdout.split()
    held = model.run("apt-mark showhold").stdout.split()
    return "\n".join(
        [
            *lines,
            "apt-get -q update",
            f"apt-get -q -y {wanted(group)}",
            "update-initramfs -u || test ! -e /usr/sbin/update-initramfs",
            f"systemctl daemon-reload && systemctl enable -q {shlex.join(units)}",
            f"apt-mark hold {shlex.join(held)}",
            "apt-get -s dist-upgrade >/dev/null",
        ]
    )


def gpuprov(folder: Path, *words: str, code: int = 0) -> None:
    """One command line, as a person types it."""
    done = subprocess.run(
        [sys.executable, "-m", "gpuprov", *words], cwd=folder, capture_output=True, text=True
    )
    if done.returncode != code:
        raise SystemExit(f"gpuprov {shlex.join(words)}: exit {done.returncode}\n{done.stderr}")


if __name__ == "__main__":
    raise SystemExit(main())
