"""A fleet as an Ansible inventory: its groups, groups by property of the hosts, and the lock's variables.

Groups by profile, GPU model, architecture, system and site have the fleet's groups as children. Variables
keep the keys that Ansible does not have: `gpuprov_group` a group's keys in the fleet, `gpuprov_host` a host's
SSH settings, `gpuprov_name` a name that is not valid in Ansible; in the group `all`, `gpuprov_fleet` the
fleet's keys outside groups, and `gpuprov_kinds` the names of the added groups. Nothing is lost:
`gpuprov inventory import` reads these variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuprov.errors import InvalidInput
from gpuprov.inventory.variables import Variables, variables_of
from gpuprov.model.fleet import Fleet, Group
from gpuprov.model.lock import Lock
from gpuprov.untrusted import templates_as_text, unmarked, with_marks_read

GROUP_VARIABLE, FLEET_VARIABLE, NAME_VARIABLE = "gpuprov_group", "gpuprov_fleet", "gpuprov_name"
KINDS_VARIABLE, HOST_VARIABLE = "gpuprov_kinds", "gpuprov_host"
RESERVED = {"all", "ungrouped"}


@dataclass(frozen=True)
class AnsibleGroup:
    """One group; `hosts` in the fleet's order."""

    hosts: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    vars: Variables = field(default_factory=dict)


@dataclass(frozen=True)
class AnsibleInventory:
    """Groups by name, including `all`, and the variables of hosts that have some."""

    groups: dict[str, AnsibleGroup]
    host_vars: dict[str, Variables]

    @property
    def hosts(self) -> list[str]:
        """All hosts, each once."""
        return list(dict.fromkeys(host for group in self.groups.values() for host in group.hosts))


def inventory_of(fleet: Fleet, models: Mapping[str, str], lock: Lock | None = None) -> AnsibleInventory:
    """Return the inventory of a fleet.

    Its groups are `all`, the fleet's groups and further groups (`also`), and groups by property of the hosts.
    `host_vars` has only hosts that have variables of their own.

    Args:
        models: group → GPU model, if known.
        lock: source of the roles' variables; without it there are only groups, addresses and connection
            variables, and the site's variables.

    Raises:
        InvalidInput: the site sets a variable that the lock decides.
    """
    names = group_names(
        [*fleet.groups, *fleet.also], (host for group in fleet.groups.values() for host in group.hosts)
    )
    everywhere = fleet.also["all"].vars if "all" in fleet.also else {}
    kinds = dict(_kinds(fleet, models, names))
    of_all = {FLEET_VARIABLE: _stated(fleet, "groups", "also", "host_vars"), KINDS_VARIABLE: list(kinds)}
    groups = {"all": AnsibleGroup(vars=templates_as_text(of_all) | with_marks_read(everywhere))}
    host_vars: dict[str, Variables] = {}
    for name, group in fleet.groups.items():
        own = {GROUP_VARIABLE: {"name": name, **_stated(group, "entries", "vars")}}
        hosts = {host: (address, fleet.connection_of(name, host)) for host, address in group.hosts.items()}
        shared, ways = variables_of(hosts, lock.groups.get(name) if lock else None)
        decided = own | shared
        host_vars |= {
            host: result for host in hosts if (result := _of_host(fleet, group, host, ways.get(host, {})))
        }
        _refuse_second_opinions(name, group.vars, decided)
        groups[names[name]] = AnsibleGroup(
            hosts=tuple(group.hosts), vars=templates_as_text(decided) | with_marks_read(group.vars)
        )
    for name, further in fleet.also.items():
        if name == "all":
            continue
        children = tuple(names[child] for child in further.children)
        called = {NAME_VARIABLE: name} if names[name] != name else {}
        groups[names[name]] = AnsibleGroup(
            tuple(further.hosts), children, called | with_marks_read(further.vars)
        )
    groups |= {name: AnsibleGroup(children=tuple(members)) for name, members in kinds.items()}
    return AnsibleInventory(groups, host_vars)


def dynamic(inventory: AnsibleInventory) -> dict[str, Any]:
    """Return an inventory script's answer to `--list`: group → its `hosts`, `children`, `vars` if not empty.

    `_meta` has the variables of all hosts. The group `all` has every other group as a child.
    """
    below_all = [name for name in inventory.groups if name != "all"]
    answer: dict[str, Any] = {"_meta": {"hostvars": unmarked(inventory.host_vars, mark=True)}}
    for name, group in inventory.groups.items():
        children = below_all if name == "all" else list(group.children)
        plain = {"hosts": list(group.hosts), "children": children, "vars": unmarked(group.vars, mark=True)}
        answer[name] = {key: value for key, value in plain.items() if value}
    return answer


def _stated(record: Fleet | Group, *without: str) -> Variables:
    """Return the keys that a file sets, apart from `without`, as JSON values and without defaults."""
    plain: Variables = record.model_dump(mode="json", exclude_unset=True, exclude=set(without))
    return plain


def _refuse_second_opinions(name: str, stated: Variables, decided: Variables) -> None:
    """Raise InvalidInput if a group's stated variables have a decided key; `ansible_*` keys may be in both.

    Args:
        name: the group, for the message.
    """
    both = sorted(key for key in stated.keys() & decided.keys() if not key.startswith("ansible_"))
    if both:
        raise InvalidInput(
            f"groups.{name}.vars states {', '.join(both)}, which the lock decides",
            do="state it in the group's stack, settings or hardware",
        )


def _of_host(fleet: Fleet, group: Group, host: str, way: Variables) -> Variables:
    """Return one host's variables: its address, its connection variables, the site's variables.

    The site's values override the others. The address is left out if it is the host's name. `gpuprov_host`
    keeps the host's stated SSH settings and the names of its connection variables that the site does not set.
    """
    address, ssh = group.entries[host].address, group.entries[host].ssh
    result = {"ansible_host": address} if address != host else {}
    kept: Variables = {"ssh": ssh.model_dump(exclude_none=True)} if ssh else {}
    site = fleet.host_vars.get(host, {})
    if ours := [key for key in way if key not in site]:  # for the import
        kept["variables"] = ours
    decided = templates_as_text(result | way | ({HOST_VARIABLE: kept} if kept else {}))
    return {**decided, **with_marks_read(site)}


def _kinds(
    fleet: Fleet, models: Mapping[str, str], names: Mapping[str, str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield groups by property of the hosts: their name, `gpu_h200_sxm`, and the fleet's groups in them.

    A group without a property, such as a known GPU model, is in no group of it. Names are those of `names`.
    """
    kinds: dict[str, list[str]] = {}
    for name, group in fleet.groups.items():
        stated = {
            "profile": group.profile,
            "gpu": models.get(name),
            "arch": group.arch,
            "os": group.os,
            "site": group.site,
        }
        for kind, value in stated.items():
            if value:
                kinds.setdefault(group_name(f"{kind}_{value}").lower(), []).append(names[name])
    taken = set(names.values())
    hosts = {host for group in fleet.groups.values() for host in group.hosts}
    for kind, members in kinds.items():
        yield _free(kind, taken | hosts, "_hosts"), members


def group_names(groups: Iterable[str], hosts: Iterable[str]) -> dict[str, str]:
    """Return group → a name that Ansible accepts without a warning and that no host has.

    `_hosts` is appended to a name that is taken.
    """
    taken = {*hosts, *RESERVED}
    names: dict[str, str] = {}
    for name in groups:
        names[name] = _free(group_name(name), taken, "_hosts")
        taken.add(names[name])
    return names


def renamed_groups(inventory: AnsibleInventory) -> dict[str, str]:
    """Return the fleet's groups that have another name in Ansible → that name; not those of `also`."""
    stated = {
        name: group.vars[GROUP_VARIABLE]["name"]
        for name, group in inventory.groups.items()
        if GROUP_VARIABLE in group.vars
    }
    return {ours: name for name, ours in stated.items() if ours != name}


def _free(name: str, taken: set[str], suffix: str) -> str:
    """Return a name that is not taken: the suffix is appended as often as necessary."""
    while name in taken:
        name += suffix
    return name


def group_name(text: str) -> str:
    """Return a valid name of an Ansible group: letters, digits and `_`, no digit first.

    `HGX H200-8` becomes `hgx_h200_8`. A valid name is not changed and keeps its capitals.
    """
    if re.fullmatch(r"[A-Za-z_]\w*", text, re.ASCII):
        return text
    plain = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_").lower() or "group"
    return f"_{plain}" if plain[0].isdecimal() else plain
