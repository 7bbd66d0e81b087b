"""What the operator pays for gpuprov: `gpuprov apply` against a shell script that does the same by hand.

    scripts/bench apply [--rounds 2]

Both start on equal fresh nodes, without a reboot, from a warm package cache. The script installs the very
packages at the very versions, writes the very files (read from the node that gpuprov made), enables the same
units, sets the same holds. Which goes first changes from round to round.
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
from pathlib import Path

from gpuprov.lab import Lab, Node
from gpuprov.lock import LockedGroup, read_lock

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
    rounds = arguments.parse_args().rounds
    with Lab(f"bench-apply-{os.getpid()}") as lab, tempfile.TemporaryDirectory() as folder:
        times = measure(lab, Path(folder), rounds)
    for what, seconds in times.items():
        listed = " ".join(f"{each:.0f}" for each in seconds)
        sys.stdout.write(f"{what:<16}{statistics.median(seconds):>8.1f} s   ({listed})\n")
    ratio = statistics.median(times["gpuprov apply"]) / statistics.median(times["shell script"])
    sys.stdout.write(f"{'ratio':<16}{ratio:>8.2f}\n")
    return 0


def measure(lab: Lab, folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, one figure a round."""
    times: dict[str, list[float]] = {"gpuprov apply": [], "shell script": []}
    group = prepare(lab, folder)
    script = ""
    for turn in range(rounds):
        for by_gpuprov in (True, False) if turn % 2 == 0 else (False, True):
            node = fresh(lab, folder)
            start = time.perf_counter()
            if by_gpuprov:
                gpuprov(folder, "apply", "--yes")
            else:
                node.run(script, timeout=3600)
            times["gpuprov apply" if by_gpuprov else "shell script"].append(time.perf_counter() - start)
            script = script or by_hand(node, group)
            lab.down([node.name])
    return times


def fresh(lab: Lab, folder: Path) -> Node:
    """A node with nothing on it, and the fleet and lock that name it."""
    [node] = lab.up(1, gpu="a100x4", names=["node1"])
    node.run("touch /root/.bench-start; systemctl is-system-running --wait", check=False)
    (folder / "fleet.yml").write_text(lab.fleet("hgx-a100-4"))
    gpuprov(folder, "lock")
    return node


def prepare(lab: Lab, folder: Path) -> LockedGroup:
    """What is locked; every package of it is in the lab's cache afterwards."""
    node = fresh(lab, folder)
    [group] = read_lock(folder / "fleet.lock.yml").groups.values()
    node.run(
        "sed -i 's/^Components: .*/Components: main contrib non-free non-free-firmware/'"
        " /etc/apt/sources.list.d/*.sources"
    )
    node.run(f"apt-get -q update && apt-get -q -y --download-only {wanted(group)}", timeout=1800)
    lab.down([node.name])
    return group


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


def gpuprov(folder: Path, *words: str) -> None:
    """One command line, as a person types it."""
    done = subprocess.run(
        [sys.executable, "-m", "gpuprov", *words], cwd=folder, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"gpuprov {shlex.join(words)}: exit {done.returncode}\n{done.stderr}")


if __name__ == "__main__":
    raise SystemExit(main())
