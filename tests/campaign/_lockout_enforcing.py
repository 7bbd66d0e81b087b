"""Lock-outs of a virtual node that enforces SELinux: each way starts from the same state of one machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpuprov_lab import Lab, Node, vm
from gpuprov_lab.variants import with_admin
from tests.campaign._lockout_ways import ADMIN, Trial, Way
from tests.systems import IMAGES

SYSTEM = "rhel9"
READY = "ready"
"""Name of the state in which each way starts."""
GUARD_S = 120
"""Seconds of the switch: an apply of both roles has a new login about one minute after it is armed."""
LOG = "/var/log/audit/audit.log"
WRITTEN = "-e /var/lib/gpuprov/deadman/saved /etc /home /root /usr/local /opt /var/lib/gpuprov"
"""Paths that gpuprov writes to; the switch's copies have the labels of the originals."""
OF_POLICY = 'comm="(\\(spawn\\)|agetty|firewalld|load_policy|systemd-[a-z-]*)"|comm="sshd".*tclass=key '
"""Denials of Debian's policy at every boot, start or login, also without gpuprov: udev, getty, firewalld,
temporary files of systemd, messages of semanage, and the keyring of sshd's sessions."""
LOOK = f"""\
[ "$(getenforce)" = Enforcing ] || echo "SELinux is $(getenforce)"
restorecon -nvR {WRITTEN} 2>/dev/null | sed 's/^Would relabel //'
grep -h 'avc: *denied' {LOG} | grep -vE '{OF_POLICY}' | grep -o ' denied .*' || :
"""


def prepared(lab: Lab, install: str) -> Node:
    """Boot the machine with its firewalls, and save its state.

    Args:
        install: command that installs the firewalls.
    """
    [node] = lab.up(1, IMAGES[SYSTEM], names=["enforcing"], prepare=[with_admin(ADMIN)])
    node.run(install)
    node = lab.virtualise(node)
    node.run(f"systemctl is-system-running --wait; : >{LOG}", check=False)
    vm.save_state(node.disk, READY)
    return node


def tried(ways: list[Way]) -> Iterator[Way]:
    """Yield the ways for this node, and print the others."""
    for way in ways:
        if way.full:
            print(f"not tried: {way.name}: a virtual node has one disk")
        else:
            yield way


def returned(node: Node, folder: Path, guard: int) -> Trial:
    """Return the machine to its state before all ways, with a console of this trial."""
    folder.mkdir()
    vm.load_state(node.disk, READY)
    trial = Trial(node, folder, guard, "sshd")
    trial.console("true")  # opens the persistent session
    return trial


def wrong_labels(trial: Trial) -> list[str]:
    """Return the mode if it is no longer enforcing, labels that are not the policy's, and denials."""
    return [line.strip() for line in trial.console(LOOK).splitlines()]
