"""Variables and expectations of sshd: options in effect, ports, who else may log in, and no undone change."""

from __future__ import annotations

import hashlib
from typing import Any

from gpuprov.access.shipped import as_shipped
from gpuprov.access.sshd import BANNER, PRINCIPALS, USER_CA, policies, ports_of
from gpuprov.model.lock import LockedGroup
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import OTHER_PROGRAM, fails, mends

OVERRULED = (
    *fails(
        "ssh",
        "ssh.options",
        "an earlier file of sshd_config.d",
        "a Match block for root, the login, all users or an address",
        "an option on sshd's command line",
    ),
    *fails(
        "ssh",
        "ssh.logins",
        "an option that the lock does not state: a command for keys, another file of keys, …",
        "another listening sshd, with options or a file of its own",
    ),
    *fails("ssh", "ssh.pam", "a line of PAM that admits without credentials (pam_permit, pam_exec, …)"),
    *mends("ssh", "ssh.loaded", "a file that sshd has not read since it changed"),
    *mends("ssh", "ssh.files", "another key or principal in the files of trusted authorities"),
    *mends("ssh", "ssh.ports", "ssh.socket, which listens instead of sshd"),
    *mends("ssh", "ssh.port_labels", "the label of a port, deleted for SELinux"),
    *fails("ssh", "ssh.port_labels", "another type of SELinux that the site gives to a port"),
    *mends("ssh", "ssh.at_boot", "sshd's unit, masked or disabled"),
    *fails(
        "ssh",
        "ssh.at_boot",
        "/etc/ssh/sshd_not_to_be_run, or a drop-in with conditions that fail",
        OTHER_PROGRAM,
    ),
    *mends("ssh", "ssh.main_process", "a mask and an unmask after which systemd has lost sshd's process"),
)
SSHD_UNITS = ("ssh.service", "sshd.service", "ssh.socket", "sshd.socket")
"""Units that start sshd at boot, of all systems."""
POLICY_PORT = 22
"""Port that every policy of SELinux gives to sshd."""


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return what decides who may log in; if the lock states SSH settings, also their options and ports.

    Options that the lock does not state are expected as the system ships them, or stricter. Without SSH
    settings no role corrects a difference. No role adds the login to a group that may log in.
    """
    ssh = group.setting("ssh")
    stated = ssh["options"] if ssh else {}
    options = {
        keyword.lower(): value for keyword, value in stated.items() if keyword not in policies()["shown_by"]
    }
    role = "ssh_hardening" if ssh else None
    unstated = {keyword: value for keyword, value in as_shipped(group.os).items() if keyword not in options}
    logins = [
        Expectation("ssh.logins", unstated, role),
        Expectation("ssh.pam", [], role),
        Expectation("ssh.loaded", [], role),
    ]
    if not ssh:
        return logins
    admitted = ssh["options"].get("AllowGroups", "").split()
    contents = {path: hashlib.sha256(f"{text}\n".encode()).hexdigest() for path, text in files(group).items()}
    other_ports = ports(group) != [POLICY_PORT]
    return [
        Expectation("ssh.options", options, role),
        Expectation("ssh.ports", ports(group), role),
        *([Expectation("ssh.port_labels", [], role)] if other_ports else []),
        Expectation("ssh.at_boot", "enabled", role),
        Expectation("ssh.main_process", [], role),
        Expectation("ssh.undone", None, role, severity="warning"),
        *logins,
        *([Expectation("ssh.login_groups", admitted, None)] if admitted else []),
        *([Expectation("ssh.files", contents, role)] if contents else []),
    ]


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return sshd's options with the files they name, and the login; empty without SSH settings."""
    ssh = group.setting("ssh")
    if not ssh:
        return {}
    return {
        "ssh_hardening_options": ssh["options"],
        "ssh_hardening_files": files(group),
        "ssh_hardening_login": group.login,
    }


def ports(group: LockedGroup) -> list[int]:
    """Return the ports on which sshd listens by the lock, in ascending order; [] without SSH settings."""
    return sorted(ports_of((group.setting("ssh") or {}).get("options", {})))


def files(group: LockedGroup) -> dict[str, str]:
    """Return path → text, without its last newline, of the files that sshd's options name."""
    ssh = group.setting("ssh") or {}
    lines = {
        USER_CA: ssh.get("user_ca", ()),
        PRINCIPALS: ssh.get("principals", ()),
        BANNER: [ssh.get("banner") or ""],
    }
    return {path: "\n".join(line) for path, line in lines.items() if any(line)}
