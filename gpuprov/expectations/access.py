"""Who may reach a node: sshd as it acts, the firewall as the kernel has it."""

from __future__ import annotations

from gpuprov.expectations.statement import Expectation
from gpuprov.model.lock import LockedGroup

FIREWALL_UNIT = "gpuprov-firewall.service"


def access(group: LockedGroup) -> list[Expectation]:
    """sshd's effective options and ports, the rules of our table, and that no change of these was undone."""
    return [*_ssh(group), *_firewall(group)]


def _ssh(group: LockedGroup) -> list[Expectation]:
    ssh = group.setting("ssh")
    if ssh is None:
        return []
    options = {keyword.lower(): value for keyword, value in ssh["options"].items()}
    role = "ssh_hardening"
    return [
        Expectation("ssh.options", options, role),
        Expectation("ssh.ports", sorted(map(int, options["port"].split())), role),
        Expectation("ssh.undone", None, role, severity="warning"),
    ]


def _firewall(group: LockedGroup) -> list[Expectation]:
    firewall = group.setting("firewall")
    if firewall is None:
        return []
    rules, role = firewall["ruleset"], "firewall"
    return [
        Expectation("firewall.unit", "enabled", role),
        Expectation("firewall.networks", rules["networks"], role),
        Expectation("firewall.input", rules["input"], role),
        Expectation("firewall.forward", rules["forward"], role),
    ]
