"""Variables and expectations of sshd: effective options and ports, and no undone change."""

from __future__ import annotations

from typing import Any

from gpuprov.access.sshd import BANNER, PRINCIPALS, USER_CA
from gpuprov.model.lock import LockedGroup
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import fails, mends

OVERRULED = (
    *fails("ssh", "ssh.options", "an earlier file of sshd_config.d", "an option on sshd's command line"),
    *mends("ssh", "ssh.ports", "ssh.socket, which listens instead of sshd"),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return effective options, ports, and no undone change; empty if the lock states no SSH settings."""
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


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return sshd's options with the files they name, and the login; empty without SSH settings."""
    ssh = group.setting("ssh")
    if not ssh:
        return {}
    lines = {USER_CA: ssh["user_ca"], PRINCIPALS: ssh["principals"], BANNER: [ssh.get("banner", "")]}
    return {
        "ssh_hardening_options": ssh["options"],
        "ssh_hardening_files": {path: "\n".join(line) for path, line in lines.items() if any(line)},
        "ssh_hardening_login": group.login,
    }
