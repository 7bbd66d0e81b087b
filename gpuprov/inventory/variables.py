"""A locked group as Ansible variables: connection variables of its hosts, and the variables of all roles."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from gpuprov import roles
from gpuprov.catalog.platforms import platform
from gpuprov.model.connection import Connection
from gpuprov.model.lock import LockedGroup
from gpuprov.ssh.openssh import ssh_options
from gpuprov.ssh.route import Route, route

Variables = dict[str, Any]
PYTHON = "/usr/bin/python3"
"""Python on this machine. In PATH Ansible would find gpuprov's own first, which lacks the module for apt.

The table of platforms names another one for systems whose own is too old for Ansible.
"""
Reached = Mapping[str, tuple[str, Connection]]
"""Host → its address and its connection settings."""


def reached(group: LockedGroup) -> Reached:
    """Return the address and the connection settings of each host of a group."""
    return {host: (address, group.connection_of(host)) for host, address in group.hosts.items()}


def group_variables(group: LockedGroup) -> Variables:
    """Return the variables that all hosts of a group share; raises as `variables_of`. Roles read no other
    source.
    """
    return variables_of(reached(group), group)[0]


def variables_of(hosts: Reached, group: LockedGroup | None) -> tuple[Variables, dict[str, Variables]]:
    """Return the variables that all hosts share, and host → the variables that only it has.

    Hosts without variables of their own are left out. A host with another login than its group's has it for
    the role ssh_hardening.

    Args:
        hosts: host → its address and its connection settings; at least one.
        group: source of the roles' variables; without it only connection variables are returned.

    Raises:
        InvalidInput: ssh's configuration cannot be read, or the system of the group is not known.
    """
    ways = {host: route(*way) for host, way in hosts.items()}
    python = platform(group.os).python if group else PYTHON
    result = {host: _way_in(way, python) for host, way in ways.items()}
    shared = {
        key: value
        for key, value in next(iter(result.values())).items()
        if all(each.get(key) == value for each in result.values())
    }
    own = {host: {key: each[key] for key in each if key not in shared} for host, each in result.items()}
    decided = roles.variables(group) if group else {}
    if group and "ssh_hardening_login" in decided:
        for host, way in ways.items():
            own[host] |= {"ssh_hardening_login": way.login} if way.login != group.login else {}
    return shared | decided, {host: each for host, each in own.items() if each}


def _way_in(way: Route, python: str) -> Variables:
    """Return connection variables: user, become, port, key, ssh options; a local connection for this machine.

    Args:
        python: the interpreter of Ansible's modules; over ssh the usual one is left to Ansible's own search.
            On this machine gpuprov's own replaces one that is not there.
    """
    if way.local:
        return {
            "ansible_connection": "local",
            "ansible_python_interpreter": python if os.access(python, os.X_OK) else sys.executable,
            "ansible_become": way.user != "root",
        }
    options = {name: value for name, value in ssh_options(way).items() if name != "IdentityFile"}
    stated = {
        "ansible_user": way.user,
        "ansible_port": way.port,
        "ansible_ssh_private_key_file": way.stated.identity_file or None,
        "ansible_become": way.user != "root",
        "ansible_python_interpreter": python if python != PYTHON else None,
        "ansible_ssh_common_args": shlex.join(
            word for name, value in options.items() for word in ("-o", f"{name}={value}")
        ),
    }
    return {name: value for name, value in stated.items() if value is not None}
