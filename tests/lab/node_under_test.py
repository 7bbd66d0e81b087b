"""One lab node and its lock: roles are applied to it, then drift and verify are run."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from gpuprov.apply.context import Options, RunContext
from gpuprov.apply.playbook import NodeOutcome, run_playbook
from gpuprov.catalog import load
from gpuprov.drift.judge import NodeDrift
from gpuprov.drift.survey import survey
from gpuprov.locking.components import family_pattern
from gpuprov.model.lock import Lock, LockedGroup, Setting
from gpuprov.ssh.dispatch import Dispatch
from gpuprov.verify import run_verification
from gpuprov_lab import Node

TRANSACTION = "Install, replace and remove packages, in one transaction"
"""Task that changes packages; in check mode it is reported as changed if it would change any."""
INSTALLED = "dpkg-query -W -f '${db:Status-Abbrev}${Package} ${Version}\\n' | sed -n 's/^[hi]i *//p'"

KILLER = """
log=/var/log/dpkg.log
until tail -c +{start} $log | sed -n {lines}p | grep -q .; do :; done
pkill -9 -x apt-get; pkill -9 -x dpkg
"""
"""Busy loop: `tail -f` polls only once a second on a node's file system, and a transaction lasts a second."""


@dataclass
class NodeUnderTest:
    """A node and the results of gpuprov's verbs on it under a lock.

    Args:
        folder: parent of the run folders.
    """

    roles: ClassVar[tuple[str, ...]] = ()
    """Roles that are applied and compared by default."""
    areas: ClassVar[tuple[str, ...]] = ()
    """Areas of checks that are verified by default."""

    stronger: ClassVar[dict[str, Any]] = {}
    """Variables that also override those that roles have in `vars`."""

    node: Node
    folder: Path
    lock: Lock = field(init=False)

    @property
    def group(self) -> LockedGroup:
        """Return or replace the only group of the lock."""
        [group] = self.lock.groups.values()
        return group

    @group.setter
    def group(self, group: LockedGroup) -> None:
        [name] = self.lock.groups
        self.lock = self.lock.model_copy(update={"groups": {name: group}})

    def rule_out(self, *absent: str) -> None:
        """Require in the lock that components are absent, with expressions as of `gpuprov lock`."""
        catalog = load()
        patterns = {each: family_pattern(catalog.own_patterns(each, "apt")) for each in absent}
        components = self.group.components.model_copy(update={"absent": patterns})
        self.group = self.group.model_copy(update={"components": components})

    def apply(
        self, *roles: str, check: bool = False, password: str | None = None, **variables: Any
    ) -> tuple[NodeOutcome, list[str]]:
        """Run roles; return the outcome and the names of the tasks that changed something.

        Args:
            password: sudo's password.
            variables: role variables that override the lock's.
        """
        events: list[dict[str, Any]] = []
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=self.folder))
        options = Options(check=check, dispatch=Dispatch(password=password))
        run = RunContext(self.lock, folder, options, listen=events.append)
        nodes = {self.node.name: {"gpuprov_roles": list(roles or self.roles), **variables}}
        outcome = run_playbook("site", nodes, run, variables=self.stronger)[self.node.name]
        return outcome, [event["task"] for event in events if event.get("status") == "changed"]

    def drift(self, *areas: str) -> dict[str, Any]:
        """Return drift as check → actual value, of the given areas (`docker.`) or else of `self.roles`."""
        [found] = survey(self.lock, [self.node.name])
        assert isinstance(found, NodeDrift)
        assert found.reason is None, found.reason
        return {
            each.check: each.actual
            for each in found.drift
            if (each.check.startswith(areas) if areas else each.role in self.roles)
        }

    def failed(self, *areas: str) -> dict[str, Any]:
        """Return the checks in the given areas that fail in verify, as check → actual value.

        At least one check of these areas must have run.
        """
        [seen] = run_verification(self.lock, [self.node.name]).nodes
        checks = {check.check: check for check in seen.checks if check.check.startswith(areas or self.areas)}
        assert checks, seen.message
        return {name: check.actual for name, check in checks.items() if check.status == "failed"}

    def says(self, command: str) -> str:
        """Return a command's output, regardless of its exit status."""
        done = self.node.run(command, check=False)
        return (done.stdout + done.stderr).strip()

    def kill_dpkg_after(self, lines: int) -> None:
        """Kill apt and dpkg with SIGKILL when dpkg has logged this many more lines."""
        start = int(self.says("stat -c %s /var/log/dpkg.log")) + 1
        self.says("systemctl stop killer.service; systemctl reset-failed killer.service")
        script = shlex.quote(KILLER.format(start=start, lines=lines))
        self.node.run(f"systemd-run --quiet --unit=killer sh -c {script}")

    def reboot(self) -> None:
        """Reboot the node and wait until its units have settled."""
        self.node.reboot()
        self.node.run("systemctl is-system-running --wait", check=False)

    @property
    def installed(self) -> dict[str, str]:
        """Installed packages: name → version."""
        return dict(line.split(" ") for line in self.says(INSTALLED).splitlines())

    def candidate(self, *packages: str) -> dict[str, str]:
        """Return the versions that apt would install of packages."""
        lines = self.says(f"apt-cache policy {' '.join(packages)}").splitlines()
        found = [line.split()[1] for line in lines if line.startswith("  Candidate:")]
        return dict(zip(packages, found, strict=True))


def with_settings(group: LockedGroup, settings: dict[str, Any]) -> LockedGroup:
    """Return the group with some settings changed, as by editing the fleet file."""
    stated = {name: Setting(value=value, reason="test", source="test") for name, value in settings.items()}
    return group.model_copy(update={"settings": {**group.settings, **stated}})
