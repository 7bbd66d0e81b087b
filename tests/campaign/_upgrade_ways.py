"""Ways to run an upgrade that something happens to, beyond what a command on a node can do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from gpuprov.errors import Unreachable
from gpuprov.lab import Node
from tests.campaign._upgrade_site import Site

Way = Callable[[Site, dict[str, Any]], CompletedProcess[str]]
SOON_S = 2.0


def mend(node: Node, command: str) -> None:
    """Mend by SSH; where the node lets nobody in, unmask SSH from outside and restart it first."""
    try:
        node.run("true")
    except Unreachable:
        for link in ("ssh.service", "ssh.socket"):
            (node.root / "etc/systemd/system" / link).unlink(missing_ok=True)
        node.stop()
        node.start()
    node.run(command, check=False)


def unreachable(site: Site, rules: dict[str, Any]) -> CompletedProcess[str]:
    """A node is off when the gate is asked."""
    node = site.fleet.nodes[-1]
    node.stop()
    done = site.upgrade(**rules)
    node.start()
    node.run("systemctl is-system-running --wait", check=False)
    return done


def falsified(site: Site, rules: dict[str, Any]) -> CompletedProcess[str]:
    """A package of the mirror is not what its index says."""
    for node in site.fleet.nodes:
        node.run("apt-get clean")
    [package] = site.mirror.root.rglob(f"libcuda1_{site.there}-*.deb")
    right = package.read_bytes()
    package.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    try:
        return site.upgrade(**rules)
    finally:
        package.write_bytes(right)


def by_two(site: Site, rules: dict[str, Any]) -> CompletedProcess[str]:
    """Another controller starts while the first is at work: what becomes of the second."""
    known = site.journals()
    first = site.start(**rules)
    site.await_step(first, "record", known)
    second = site.upgrade(**rules)
    first.communicate()
    site.rollback()
    return second


def killed_in(step: str) -> Way:
    """The controller dies a moment after it began a step, and another goes on."""

    def way(site: Site, rules: dict[str, Any]) -> CompletedProcess[str]:
        _kill(site, rules, step)
        return site.fleet.gpuprov("upgrade", "--resume", "-o", "json")

    return way


def killed_and_cut(site: Site, rules: dict[str, Any]) -> CompletedProcess[str]:
    """The controller dies, and half of its journal's last line is lost."""
    journal = _kill(site, rules, "apply")
    journal.write_bytes(journal.read_bytes()[:-30])
    return site.fleet.gpuprov("upgrade", "--resume", "-o", "json")


def _kill(site: Site, rules: dict[str, Any], step: str) -> Path:
    known = site.journals()
    process = site.start(**rules)
    site.await_step(process, step, known)
    time.sleep(SOON_S)
    process.kill()
    process.communicate()
    return site.journals()[-1]  # a shut gate has none; then the last one is resumed, which says so


def back_without_mirror(site: Site, rules: dict[str, Any]) -> CompletedProcess[str]:
    """There with a mirror, and back without one."""
    done = site.upgrade(**rules)
    for node in site.fleet.nodes:
        node.run("apt-get clean")
    site.server.mood = "gone"
    return site.rollback() if done.returncode == 0 else done


def back_with_a_damaged_package(site: Site, rules: dict[str, Any]) -> CompletedProcess[str]:
    """A kept package rots before it is needed."""
    done = site.upgrade(**rules)
    for node in site.fleet.nodes:
        node.run("for each in /var/lib/gpuprov/lastgood/packages/libcuda1_*; do echo rot >>$each; done")
    return site.rollback() if done.returncode == 0 else done
