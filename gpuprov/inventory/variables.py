"""A locked group as Ansible variables: how its hosts are reached, and all that the roles are told."""

from __future__ import annotations

from typing import Any

from gpuprov import roles
from gpuprov.model.lock import Connection, LockedGroup


def group_variables(group: LockedGroup) -> dict[str, Any]:
    """Variables of every host of a group. Roles take nothing from anywhere else."""
    return connection(group.connection) | roles.variables(group)


def connection(spec: Connection) -> dict[str, Any]:
    """User, port, key, and what ssh is told."""
    stated = {
        "ansible_user": spec.user,
        "ansible_port": spec.port,
        "ansible_ssh_private_key_file": spec.identity_file,
        "ansible_become": spec.user != "root",
        "ansible_ssh_common_args": " ".join(_ssh_arguments(spec)),
    }
    return {name: value for name, value in stated.items() if value is not None}


def _ssh_arguments(spec: Connection) -> list[str]:
    arguments = ["-o", "StrictHostKeyChecking=yes"]
    if spec.known_hosts:
        arguments += ["-o", f"UserKnownHostsFile={spec.known_hosts}"]
    if spec.identity_file:
        arguments += ["-o", "IdentitiesOnly=yes"]
    if spec.jump:
        arguments += ["-J", spec.jump]
    return arguments
