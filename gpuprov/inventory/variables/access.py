"""Variables of `ssh_hardening` and `firewall`."""

from __future__ import annotations

from typing import Any

from gpuprov.access.sshd import BANNER, PRINCIPALS, USER_CA
from gpuprov.model.lock import LockedGroup


def access(group: LockedGroup) -> dict[str, Any]:
    """sshd's options with the files they name, and the rules of our table."""
    ssh, firewall = group.setting("ssh"), group.setting("firewall")
    stated: dict[str, Any] = {}
    if ssh:
        lines = {USER_CA: ssh["user_ca"], PRINCIPALS: ssh["principals"], BANNER: [ssh.get("banner", "")]}
        stated |= {
            "ssh_hardening_options": ssh["options"],
            "ssh_hardening_files": {path: "\n".join(line) for path, line in lines.items() if any(line)},
            "ssh_hardening_login": group.connection.user,
        }
    if firewall:
        rules = firewall["ruleset"]
        stated |= {
            "firewall_networks": rules["networks"],
            "firewall_input": rules["input"],
            "firewall_forward": rules["forward"],
        }
    return stated
