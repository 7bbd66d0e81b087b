"""The whole stack, from a mirror: `gpuprov apply` against a shell script that does the same by hand.

    scripts/bench stack [--rounds 2]

Driver, fabric manager, CUDA, cuDNN, NCCL, Docker, container toolkit, DCGM, tools, tuning, SSH and firewall on
equal fresh nodes, without a reboot. The script installs the very packages at the very versions, writes the
very files (read from a node that gpuprov made), enables the same units, sets the same holds. Which goes first
changes from round to round. Packages are stubs of NVIDIA's and Debian's real ones: neither way compiles.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from gpuprov.lab import Lab, Node
from gpuprov.lock import LockedGroup
from tests.bench.apply import timed
from tests.campaign._roles_fleet import SETTLED, Fleet, fleet_of, new_node

SYSTEM = "debian12"
START = "/root/.bench-start"
OURS = (
    "find /etc /usr/local /var/lib/gpuprov -type f -newer"
    f" {START} '(' -path '*gpuprov*' -o -path '/etc/systemd/system/*.d/*' -o -name nccl.conf"
    " -o -name daemon.json -o -path /etc/environment ')' ! -name '*~'"
)
PROM = "find /var/lib/prometheus -name 'gpuprov*.prom' -type f"
UNITS = "systemctl list-unit-files --state=enabled --no-legend | cut -d' ' -f1 | sort"
AFTER = (
    "systemctl daemon-reload",
    "sysctl -q --system",
    "ldconfig",
    "systemctl restart docker",
    "systemctl reload ssh",
    "apt-get -s dist-upgrade >/dev/null",
)


def main() -> int:
    """Measure and print."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=2)
    rounds = arguments.parse_args().rounds
    times: dict[str, list[float]] = {"gpuprov apply": [], "shell script": []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuprov-bench-")))
        folder.chmod(0o755)
        lab = stack.enter_context(Lab(f"bench-stack-{os.getpid()}"))
        fleet = fleet_of(stack, lab, folder, {SYSTEM: fresh(lab, "model")}, {})
        script = model_script(fleet)
        for turn in range(rounds):
            for what in list(times) if turn % 2 == 0 else reversed(times):
                times[what].append(once(fleet, what, script))
    for what, seconds in times.items():
        listed = " ".join(f"{each:.0f}" for each in seconds)
        say(f"{what:<16}{statistics.median(seconds):>8.1f} s   ({listed})")
    ours, by_hand = (statistics.median(seconds) for seconds in times.values())
    say(f"{'ratio':<16}{ours / by_hand:>8.2f}   (at most 1.2)")
    return 0


def fresh(lab: Lab, name: str) -> Node:
    """A node with nothing on it, and a mark of the time."""
    node = new_node(lab, SYSTEM, name)
    node.run(f"{SETTLED}; touch {START}; sleep 1", check=False)
    return node


def once(fleet: Fleet, what: str, script: str) -> float:
    """Seconds of one way on a node of its own."""
    node = fresh(fleet.lab, what.split()[0])
    fleet.nodes[SYSTEM] = node
    fleet.state(0)
    if what == "shell script":
        _, seconds = timed(lambda: node.run(script, timeout=3600))
    else:
        _, seconds = timed(lambda: apply(fleet))
    fleet.lab.down([node.name])
    return seconds


def apply(fleet: Fleet) -> int:
    """Everything on the node, without a reboot; how many tasks that was."""
    run = fleet.apply("--no-verify")
    if any(run.failed.values()):
        raise SystemExit(f"gpuprov apply: {dict(run.failed)}")
    return run.tasks


def model_script(fleet: Fleet) -> str:
    """The script by hand, of a node that gpuprov made; every package is in the lab's cache afterwards."""
    node = fleet.nodes[SYSTEM]
    [group] = fleet.state(0).groups.values()
    before = set(node.run(UNITS).stdout.split())
    tasks, seconds = timed(lambda: apply(fleet))
    say(f"{tasks} tasks in {seconds:.0f} s on the node that is the model")
    script = by_hand(node, group, set(node.run(UNITS).stdout.split()) - before)
    fleet.lab.down([node.name])
    return script


def by_hand(model: Node, group: LockedGroup, units: set[str]) -> str:
    """A shell script that makes of a fresh node what `model` is."""
    ours = files(model, OURS)
    sources = [line for path in ours if path.startswith("/etc/apt") for line in written(model, path)]
    others = [line for path in ours if not path.startswith("/etc/apt") for line in written(model, path)]
    textfiles = [line for path in files(model, PROM) for line in written(model, path)]
    held = model.run("apt-mark showhold").stdout.split()
    return "\n".join(
        [
            "set -e",
            "export DEBIAN_FRONTEND=noninteractive",
            *sources,
            "apt-get -q update",
            # Before the daemons' first start, so that they need no second one.
            *others,
            f"apt-get -q -y {wanted(group)}",
            *textfiles,
            *AFTER,
            f"systemctl enable -q --now {shlex.join(sorted(units))}",
            f"apt-mark hold {shlex.join(held)} >/dev/null",
        ]
    )


def files(model: Node, search: str) -> list[str]:
    """What a search finds, sorted."""
    return sorted(model.run(search).stdout.split())


def written(model: Node, path: str) -> list[str]:
    """Lines of shell that write a file as it is on the model."""
    mode, content = model.run(f"stat -c %a {path}; base64 {path}").stdout.split("\n", 1)
    return [
        f"mkdir -p {Path(path).parent}",
        f"base64 -d >{path} <<'END'\n{content.rstrip()}\nEND",
        f"chmod {mode} {path}",
    ]


def wanted(group: LockedGroup) -> str:
    """Arguments of apt-get that install what the lock says and what compiles it."""
    exact = [
        f"{name}={version}" for _, each in group.components.each() for name, version in each.closure.items()
    ]
    beside = [name for _, each in group.components.each() for name in each.beside]
    names = shlex.join([*exact, *beside, "build-essential", "dkms"])
    return (
        "--no-install-recommends -o Dpkg::Options::=--force-confold"
        f" install {names} linux-headers-{group.setting('kernel')}"
    )


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
