"""Upgrades with faults that a command on a node cannot cause."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from gpuprov.errors import Unreachable
from gpuprov_lab import Node
from tests.campaign._upgrade_site import Site

Way = Callable[[Site, dict[str, Any]], CompletedProcess[str]]
SOON_S = 2.0


def mend(node: Node, command: str) -> None:
    """Run a command by SSH; on an unreachable node unmask SSH from outside and restart the node first."""
    try:
        node.run("true")
    except Unreachable:
        for link in ("ssh.service", "ssh.socket"):
            (node.root / "etc/systemd/system" / link).unlink(missing_ok=True)
        node.stop()
        node.start()
    node.run(command, check=False)


def unreachable(site: Site, rules: dict[str, Any]) -> CompletedProcess[str]:
    """Upgrade while a node is off at the gate."""
    node = site.fleet.nodes[-1]
    node.stop()
    done = site.upgrade(**rules)
    node.start()
    node.run("systemctl is-system-running --wait", check=False)
    return done


def falsified(site: Site, rules: dict[str, Any]) -> CompletedProcess[str]:
    """Upgrade while a package of the mirror differs from its index."""
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
    """Start another controller while the first one works; return the second one's result."""
    known = site.journals()
    first = site.start(**rules)
    site.await_step(first, "record", known)
    second = site.upgrade(**rules)
    first.communicate()
    site.rollback()
    return second


def killed_in(step: str) -> Way:
    """Return a way in which the controller is killed shortly after it began a step, and another resumes."""

    def way(site: Site, rules: dict[str, Any]) -> CompletedProcess[str]:
        _kill(site, rules, step)
        return site.fleet.gpuprov("upgrade", "--resume", "-o", "json")

    return way


def killed_and_cut(site: Site, rules: dict[str, Any]) -> CompletedProcess[str]:
    """Kill the controller, truncate its journal's last line, and resume."""
    journal = _kill(site, rules, "apply")
    journal.write_bytes(journal.read_bytes()[:-30])
    return site.fleet.gpuprov("upgrade", "--resume", "-o", "json")


def _kill(site: Site, rules: dict[str, Any], step: str) -> Path:
    """Start an upgrade, kill it soon after a step begins, and return its journal."""
    known = site.journals()
    process = site.start(**rules)
    site.await_step(process, step, known)
    time.sleep(SOON_S)
    process.kill()
    process.communicate()
    return site.journals()[-1]  # a closed gate writes none; the last run is resumed, which the output states


def back_without_mirror(site: Site, rules: dict[str, Any]) -> CompletedProcess[str]:
    """Upgrade with a mirror, and roll back without one."""
    done = site.upgrade(**rules)
    for node in site.fleet.nodes:
        node.run("apt-get clean")
    site.server.mood = "gone"
    return site.rollback() if done.returncode == 0 else done


def back_with_a_damaged_package(site: Site, rules: dict[str, Any]) -> CompletedProcess[str]:
    """Damage a kept package before the rollback."""
    done = site.upgrade(**rules)
    for node in site.fleet.nodes:
        node.run("for each in /var/lib/gpuprov/lastgood/packages/libcuda1_*; do echo rot >>$each; done")
    return site.rollback() if done.returncode == 0 else done
