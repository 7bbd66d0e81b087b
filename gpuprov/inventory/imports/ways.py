"""SSH settings of a fleet from the connection variables of an Ansible inventory.

Each host has the value that Ansible would use; a value that all hosts share is stated for the fleet, one that
a group shares for the group, and other values for the host.
"""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

from gpuprov.errors import InvalidInput
from gpuprov.inventory.ansible import AnsibleGroup, AnsibleInventory
from gpuprov.inventory.imports.machine import in_common
from gpuprov.model.connection import parse_destination
from gpuprov.untrusted import on_one_line

WAY_IN = {
    "ansible_user": "user",
    "ansible_ssh_user": "user",
    "ansible_port": "port",
    "ansible_ssh_port": "port",
    "ansible_ssh_private_key_file": "identity_file",
    "ansible_private_key_file": "identity_file",
}
"""Ansible's variables → keys of `ssh:`; of two names for the same value the first is the newer."""
ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args")
CONNECTION = (*WAY_IN, *ARGUMENTS)
LONGEST = 4096
"""Maximum length of ssh's options with a jump host; shlex takes the square of a word's length."""
PORT = r"[0-9]{1,5}"
Stated = dict[str, Any]
Precedences = dict[str, tuple[tuple[int, str], Any]]
"""Connection variable → its value, after the depth and the name of the group that states it."""


@dataclass(frozen=True)
class Ways:
    """`ssh:` of groups, hosts and the fleet, and `lifted`: the variables that these replace."""

    groups: Mapping[str, Stated]
    hosts: Mapping[str, Stated]
    fleet: Stated = field(default_factory=dict)
    lifted: frozenset[str] = frozenset()


def ways_of(inventory: AnsibleInventory, owners: Mapping[str, Iterable[str]]) -> Ways:
    """Return the SSH settings of an inventory: those that all hosts share, those of groups, and of single
    hosts.

    A setting that is a template for any host is left out for all.

    Args:
        owners: group of the fleet → its hosts.

    Raises:
        InvalidInput: groups contain each other.
    """
    connections = _connections(inventory)
    result = {host: connections.get(host, {}) for hosts in owners.values() for host in hosts}
    templates = {
        key for variables in result.values() for key in WAY_IN if "{{" in str(variables.get(key, ""))
    }
    left = {WAY_IN[key] for key in templates}
    of_host = {host: _ssh(variables, left) for host, variables in result.items()}
    fleet = in_common(of_host.values())
    below = {host: _without(ssh, fleet) for host, ssh in of_host.items()}
    groups = {name: in_common(below[host] for host in hosts) for name, hosts in owners.items()}
    own = {host: _without(below[host], groups[name]) for name, of in owners.items() for host in of}
    arguments = {
        key for key in ARGUMENTS if all(_only_jumps(str(each.get(key) or "")) for each in result.values())
    }
    lifted = {key for key, meant in WAY_IN.items() if meant not in left} | arguments
    return Ways(groups, {host: ssh for host, ssh in own.items() if ssh}, fleet, frozenset(lifted))


def _connections(inventory: AnsibleInventory) -> dict[str, Stated]:
    """Return host → its connection variables, those of the host before those of its groups. Groups further
    from `all` take precedence, at equal depth those of the later name.

    Raises as `_of_groups`.
    """
    of_groups = _of_groups(inventory)
    of_hosts: dict[str, list[Precedences]] = {}
    for name, group in inventory.groups.items():
        for host in group.hosts:
            of_hosts.setdefault(host, [of_groups["all"]]).append(of_groups[name])
    return {
        host: {key: value for key, (_, value) in _latest(result).items()} | inventory.host_vars.get(host, {})
        for host, result in of_hosts.items()
    }


def _of_groups(inventory: AnsibleInventory) -> dict[str, Precedences]:
    """Return group → its connection variables and those of the groups that contain it.

    Raises:
        InvalidInput: groups contain each other.
    """
    within: dict[str, list[str]] = {name: ["all"] for name in inventory.groups} | {"all": []}
    for name, group in inventory.groups.items():
        for child in group.children:
            within.setdefault(child, ["all"]).append(name)
    depth: dict[str, int] = {}
    result: dict[str, Precedences] = {}
    try:
        for name in TopologicalSorter(within).static_order():
            depth[name] = max((depth[above] + 1 for above in within[name]), default=0)
            stated = inventory.groups.get(name, AnsibleGroup()).vars
            own: Precedences = {
                key: ((depth[name], name), stated[key]) for key in CONNECTION if key in stated
            }
            result[name] = _latest([own, *(result[above] for above in within[name])])
    except CycleError as error:
        raise InvalidInput(f"groups contain each other: {on_one_line(', '.join(error.args[1]))}") from None
    return result


def _latest(stated: Iterable[Precedences]) -> Precedences:
    """Return of each variable the value that takes precedence: of the deepest group, then of the last by
    name.
    """
    found: Precedences = {}
    for each in stated:
        for key, (place, value) in each.items():
            if key not in found or found[key][0] < place:
                found[key] = (place, value)
    return found


def _ssh(variables: Mapping[str, Any], left: set[str]) -> Stated:
    """Return the keys of `ssh:` that variables set, except those `left` because some host has a template."""
    found: Stated = {}
    for key, meant in reversed(WAY_IN.items()):
        if meant not in left and variables.get(key) not in (None, ""):
            value = variables[key]
            found[meant] = int(value) if meant == "port" and re.fullmatch(PORT, str(value)) else value
    for key in ARGUMENTS:
        if jump := _jump(str(variables.get(key, ""))):
            found["jump"] = jump
    return found


def _without(stated: Stated, above: Stated) -> Stated:
    """Return the settings whose key is not in `above`."""
    return {key: value for key, value in stated.items() if key not in above}


def _words(arguments: str) -> list[str]:
    """Return the words of ssh's options, each `-oNAME=VALUE` as one word without `-o`."""
    try:
        words = deque(shlex.split(arguments))
    except ValueError:
        return [arguments]
    found = []
    while words:
        word = words.popleft()
        if word in ("-o", "-J") and words:
            word = f"{'ProxyJump=' if word == '-J' else ''}{words.popleft()}"
        found.append(word.removeprefix("-o"))
    return found


@lru_cache(maxsize=1024)
def _jump(arguments: str) -> str | None:
    """Return the jump host in ssh's options, from ProxyJump or from `ssh -W`; None without one."""
    if len(arguments) > LONGEST:
        return None
    for word in _words(arguments):
        name, _, value = word.partition("=")
        jump = {"proxyjump": value, "proxycommand": _hop(value)}.get(name.lower())
        if jump and _is_jump(jump):
            return jump
    return None


def _hop(command: str) -> str | None:
    """Return `ops@bastion:2222` for `ssh -W %h:%p -q -p 2222 ops@bastion`; None for any other command."""
    words = deque(_split(command))
    if not words or words.popleft() != "ssh" or "-W" not in words:
        return None
    user = port = host = None
    while words:
        word = words.popleft()
        if word in ("-W", "-p", "-l") and words:
            value = words.popleft()
            port, user = (value if word == "-p" else port), (value if word == "-l" else user)
        elif word in ("-q", "-T", "-A", "-a"):
            continue
        elif word.startswith("-") or host:
            return None
        else:
            host = word
    place = f"{user}@{host}" if user else host
    return f"{place}:{port}" if place and port else place


def _split(command: str) -> list[str]:
    """Return the words of a shell command; none if its quotes do not match."""
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _is_jump(text: str) -> bool:
    """Return whether a text is one or several destinations of ssh, with commas."""
    try:
        return all(parse_destination(each) for each in text.split(","))
    except ValueError:
        return False


@lru_cache(maxsize=1024)
def _only_jumps(arguments: str) -> bool:
    """Return whether options set only a jump host and strict checking of host keys."""
    if len(arguments) > LONGEST:
        return False
    for word in _words(arguments):
        name, _, value = word.partition("=")
        if name.lower() == "stricthostkeychecking" and value.lower() in ("yes", "true"):
            continue
        if _jump(f"-o {shlex.quote(word)}") is None:
            return False
    return True
