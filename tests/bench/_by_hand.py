"""The shell script that a good administrator would write instead of using gpuprov."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from gpuprov.lab import Node
from gpuprov.lock import LockedGroup
from tests.campaign._roles_fleet import SETTLED

START = "/root/.bench-start"
FILES = (
    f"find /etc /usr/local/sbin /var/lib/gpuprov /var/lib/prometheus -type f -newer {START}"
    " '(' -path '*gpuprov*' -o -path '/etc/systemd/system/*.d/*' -o -name nccl.conf"
    " -o -name daemon.json -o -path /etc/containerd/config.toml -o -path /etc/environment ')'"
    " ! -name '*~' 2>/dev/null"
)
UNITS = "systemctl list-unit-files --state=enabled --no-legend | cut -d' ' -f1 | sort"
AT_THE_END = (
    "update-initramfs -u || test ! -e /usr/sbin/update-initramfs",
    "sysctl -q --load=/etc/sysctl.d/90-gpuprov.conf || test ! -e /etc/sysctl.d/90-gpuprov.conf",
    "ldconfig",
    "systemctl reload ssh",
    "test ! -e /etc/gpuprov/firewall.nft || nft -f /etc/gpuprov/firewall.nft",
    "apt-get -s dist-upgrade >/dev/null",
)


def begin(node: Node) -> None:
    """Wait for a node that was just made, and mark the time on it."""
    node.run(f"{SETTLED}; touch {START}; sleep 1", check=False)


@dataclass(frozen=True)
class Chosen:
    """What somebody chose on a node: packages by name, and units that start by themselves."""

    packages: set[str]
    units: set[str]

    @classmethod
    def on(cls, node: Node) -> Chosen:
        """As it is now."""
        return cls(set(node.run("apt-mark showmanual").stdout.split()), set(node.run(UNITS).stdout.split()))


def script(model: Node, group: LockedGroup, before: Chosen) -> str:
    """What makes of a fresh node what `model` is: the same packages at the same versions, the same files.

    Args:
        model: a node that gpuprov made, after `begin`.
        before: what was chosen on it before that.
    """
    after = Chosen.on(model)
    found = sorted(model.run(FILES, check=False).stdout.split())
    sources = [line for path in found if path.startswith("/etc/apt/") for line in _written(model, path)]
    # Before the daemons' first start, so that they need no second one.
    others = [line for path in found if not path.startswith("/etc/apt/") for line in _written(model, path)]
    held = model.run("apt-mark showhold").stdout.split()
    return "\n".join(
        [
            "set -e",
            "export DEBIAN_FRONTEND=noninteractive",
            *sources,
            "apt-get -q update",
            *others,
            _installation(group, after.packages - before.packages),
            *AT_THE_END,
            "systemctl daemon-reload",
            f"systemctl enable -q {shlex.join(sorted(after.units - before.units))}",
            f"apt-mark hold {shlex.join(held)} >/dev/null",
        ]
    )


def _installation(group: LockedGroup, chosen: set[str]) -> str:
    """One transaction: what the lock says at its versions, and the rest as the node's sources have it."""
    exact = {name: version for _, each in group.components.each() for name, version in each.closure.items()}
    names = [f"{name}={version}" for name, version in exact.items()] + sorted(chosen - exact.keys())
    options = "--no-install-recommends -o Dpkg::Options::=--force-confold"
    return f"apt-get -q -y {options} install {shlex.join(names)}"


def _written(model: Node, path: str) -> list[str]:
    """Lines of shell that write a file as it is on the model."""
    mode, content = model.run(f"stat -c %a {path}; base64 {path}").stdout.split("\n", 1)
    return [
        f"mkdir -p {Path(path).parent}",
        f"base64 -d >{path} <<'END'\n{content.rstrip()}\nEND",
        f"chmod {mode} {path}",
    ]
