"""A fleet from an Ansible inventory: INI, YAML, or a folder of such files.

Ansible parses it; `ansible-inventory --export` keeps variables where they were set. Scripts and inventory
plugins are not run, and an ansible.cfg is not read: they are programs, or name some. What ansible-vault
encrypted is left out. Groups become groups of the fleet as long as no host is in two of them; the others are
kept under `also` with their variables.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuprov.errors import InvalidInput
from gpuprov.files.resources import ansible_environment, share
from gpuprov.inventory.ansible import (
    FLEET_VARIABLE,
    GROUP_VARIABLE,
    HOST_VARIABLE,
    KINDS_VARIABLE,
    NAME_VARIABLE,
    AnsibleGroup,
    AnsibleInventory,
)
from gpuprov.inventory.imports.files import check_files
from gpuprov.inventory.imports.left_out import role_prefixes
from gpuprov.inventory.imports.machine import (
    ImportHints,
    fold_entries,
    fold_hosts,
    host_entry,
    refuse_many,
    report_shared_profile,
)
from gpuprov.inventory.imports.reading import check_names, check_shapes, is_encrypted, parsed, run_bounded
from gpuprov.inventory.imports.ways import WAY_IN, Ways, ways_of
from gpuprov.model.nodeset import fold
from gpuprov.untrusted import on_one_line, shell, unmarked

FORMATS = "ini,yaml,host_list"
"""Ansible's inventory plugins that only parse a file."""
VARS_PLUGIN = "gpuprov_import"
"""The collection's vars plugin that stays in the inventory's folder."""
PLUGIN = re.compile(r"Failed to parse (?:inventory|\S+) with '?([\w.]+)'? plugin: (.*)")
"""Ansible's message about a plugin that cannot parse an inventory: since 2.19, and before."""
OURS = {GROUP_VARIABLE, FLEET_VARIABLE, NAME_VARIABLE, KINDS_VARIABLE, HOST_VARIABLE}
CONNECTION = {*WAY_IN, "ansible_become", "ansible_ssh_common_args"}


def read_inventory(path: Path, narrate: Callable[[str], None] = lambda line: None) -> AnsibleInventory:
    """Return an inventory as Ansible parses it.

    Args:
        narrate: called with a line for the user, which names what ansible-vault encrypted.

    Raises:
        InvalidInput: Ansible cannot parse it, even where Ansible itself would only warn; it exceeds a limit;
            a link or a name leads out of it; or a variable of gpuprov's has a wrong type.
    """
    encrypted = [str(file) for file in check_files(path)]
    program = Path(sys.executable).with_name("ansible-inventory")
    command = [str(program), "--inventory", str(path), "--list", "--export"]
    with tempfile.TemporaryDirectory(prefix="gpuprov-import-") as scratch:
        done = run_bounded(command, _environment(Path(scratch)))
    if done.code:
        reason = _reason(done.stderr.decode("utf-8", "replace"), path)
        export = shell("ansible-inventory -i {} --list --export --yaml --output hosts.yml", path)
        raise InvalidInput(
            f"{path}: Ansible cannot read it as an inventory: {reason}",
            expected="INI or YAML that lists hosts",
            do=f"if it is a script or names a plugin: `{export}`, then import hosts.yml",
        )
    inventory, values = _inventory(parsed(done.stdout, path), path)
    if encrypted or values:
        left = on_one_line(", ".join([*encrypted, *values]))
        narrate(f"left out, because ansible-vault encrypted it: {left}; a fleet refers to no vault")
    return inventory


def _inventory(answer: dict[str, Any], path: Path) -> tuple[AnsibleInventory, list[str]]:
    """Return the inventory in Ansible's answer, and the places of encrypted values, which are left out.

    Raises:
        InvalidInput: a name leads out of the inventory, or a variable of gpuprov's has a wrong type.
    """
    host_vars = answer.pop("_meta", {}).get("hostvars", {})
    listed = [
        name for group in answer.values() for key in ("hosts", "children") for name in group.get(key, ())
    ]
    check_names([*answer, *host_vars, *listed], path)
    places = {f"group {name}": group.get("vars", {}) for name, group in answer.items()}
    places |= {f"host {name}": own for name, own in host_vars.items()}
    values = [
        f"{name} ({place})"
        for place, own in places.items()
        for name, value in own.items()
        if is_encrypted(value)
    ]
    groups = {
        name: AnsibleGroup(
            tuple(group.get("hosts", ())),
            tuple(group.get("children", ())),
            _plain(group.get("vars", {}), f"{path}: group {name}"),
        )
        for name, group in answer.items()
    }
    plain = {host: _plain(own, f"{path}: host {host}") for host, own in host_vars.items()}
    return AnsibleInventory(groups, plain), values


def _environment(scratch: Path) -> dict[str, str]:
    """Return the environment of ansible-inventory, without settings of the operator or the inventory."""
    return {
        **ansible_environment(scratch),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_INVENTORY_ENABLED": FORMATS,
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1",
        "ANSIBLE_INVENTORY_UNPARSED_FAILED": "1",
        "ANSIBLE_VARS_PLUGINS": str(share("plugins") / "vars"),
        "ANSIBLE_VARS_ENABLED": VARS_PLUGIN,
    }


def _plain(variables: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return variables that are not encrypted, with Ansible's mark of unsafe text only on those of the site.

    Raises:
        InvalidInput: a variable of gpuprov's has a wrong type.
    """
    ours = OURS | CONNECTION | {"ansible_host"}
    plain = {
        key: unmarked(value, mark=False) if key in ours else value
        for key, value in variables.items()
        if not is_encrypted(value)
    }
    check_shapes(plain, place)
    return plain


def _reason(text: str, path: Path) -> str:
    """Return the cause from Ansible's output, in which every plugin reports that it cannot parse the file."""
    blocks = [" ".join(block.split()) for block in re.split(r"\[(?:WARNING|ERROR)\]:|ERROR!|\n\s*\n", text)]
    said: dict[str, str] = {}
    for block in blocks:
        if found := PLUGIN.search(block):
            said.setdefault(found[1], found[2].strip(" ."))
    meant = said.get("yaml" if path.suffix in (".yml", ".yaml") else "ini", "")
    return meant or next((block for block in reversed(blocks) if block), "no message")


def fleet_of(
    inventory: AnsibleInventory,
    said: ImportHints,
    wanted: Iterable[str] = (),
    narrate: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Return the keys of a fleet.

    Args:
        wanted: groups that are kinds of servers, whose hosts are imported; if empty, all groups in order,
            without those that share a host with an earlier one.
        narrate: called with a line about the hosts that are left out, and about a profile that several groups
            get.

    Raises:
        InvalidInput: the profile or system of a group is not stated, or stated for an unknown group, or there
            are too many hosts.
    """
    refuse_many(len(inventory.hosts))
    ours = {name for name, group in inventory.groups.items() if GROUP_VARIABLE in group.vars}
    wanted = list(wanted)
    owners = _owners(inventory, list(ours) or wanted)
    if not ours:
        said.refuse_unknown(
            name for name in {**inventory.groups, **owners} if name not in ("all", "ungrouped")
        )
    if wanted and not ours:
        inventory, owners = _only(inventory, owners, wanted, said, narrate)
    shown = {name: _shown(inventory, name) for name in {**inventory.groups, **owners}}
    _refuse_one_name(inventory, shown)
    ways = Ways({}, {}) if ours else ways_of(inventory, owners)
    host_vars = {host: _of_host(own) for host, own in inventory.host_vars.items()}
    groups: dict[str, Any] = {}
    for name, hosts in owners.items():
        entries = {host: _entry(host, inventory.host_vars.get(host, {}), ways.hosts) for host in hosts}
        stated = _vars(inventory, name)
        kind = dict(stated.get(GROUP_VARIABLE) or _stated_kind(name, said))
        kind.pop("name", None)
        kind |= {"ssh": ways.groups[name]} if ways.groups.get(name) else {}
        own = _own(stated, ways.lifted, ours=name in ours)
        groups[shown[name]] = {**kind, "hosts": fold_entries(entries)} | ({"vars": own} if own else {})
    report_shared_profile((name for name in owners if name not in ours), said, narrate)
    everywhere = _vars(inventory, "all")
    fleet: dict[str, Any] = {"groups": groups, **everywhere.get(FLEET_VARIABLE, {})}
    also = _further(inventory, owners, shown, ways.lifted)
    kept = {host: own for host in host_vars if (own := _own(host_vars[host], ways.lifted))}
    fleet |= {key: value for key, value in (("also", also), ("host_vars", kept)) if value}
    if ways.fleet:
        fleet["ssh"] = ways.fleet
    return fleet


def _only(
    inventory: AnsibleInventory,
    owners: dict[str, list[str]],
    wanted: list[str],
    said: ImportHints,
    narrate: Callable[[str], None],
) -> tuple[AnsibleInventory, dict[str, list[str]]]:
    """Return the inventory and the owners without hosts that are in no wanted group; report these hosts.

    They stay if a profile is stated for their group: a monitoring host is no GPU server.
    """
    kept = {name: hosts for name, hosts in owners.items() if name in wanted or name in said.profile}
    left = [host for name, hosts in owners.items() if name not in kept for host in hosts]
    if not left:
        return inventory, owners
    narrate(f"left out, as they are in none of the groups {', '.join(wanted)}: {fold(left)}")
    out = set(left)
    groups = {
        name: replace(group, hosts=tuple(host for host in group.hosts if host not in out))
        for name, group in inventory.groups.items()
    }
    host_vars = {host: own for host, own in inventory.host_vars.items() if host not in out}
    return AnsibleInventory(groups, host_vars), kept


def _of_host(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return a host's variables without its address and without those that gpuprov generated."""
    ours = {"ansible_host", "ansible_ssh_host", *stated.get(HOST_VARIABLE, {}).get("variables", ())}
    return {key: value for key, value in stated.items() if key not in ours}


def _entry(host: str, stated: Mapping[str, Any], ways: Mapping[str, dict[str, Any]]) -> str | dict[str, Any]:
    """Return a host's entry in the fleet: its address, and its own SSH settings if it has some."""
    address = str(stated.get("ansible_host", stated.get("ansible_ssh_host", host)))
    return host_entry(address, stated.get(HOST_VARIABLE, {}).get("ssh") or ways.get(host, {}))


def _vars(inventory: AnsibleInventory, name: str) -> dict[str, Any]:
    """Return the variables of a group; none for an unknown one."""
    return inventory.groups.get(name, AnsibleGroup()).vars


def _shown(inventory: AnsibleInventory, name: str) -> str:
    """Return a group's name in the fleet."""
    stated = _vars(inventory, name)
    return str(stated.get(GROUP_VARIABLE, {}).get("name") or stated.get(NAME_VARIABLE) or name)


def _refuse_one_name(inventory: AnsibleInventory, shown: Mapping[str, str]) -> None:
    """Check that no two groups have one name in the fleet, where one would replace the other.

    Raises:
        InvalidInput: with the names of both.
    """
    computed = set(_vars(inventory, "all").get(KINDS_VARIABLE, ()))
    first: dict[str, str] = {}
    for name, in_fleet in shown.items():
        if name in computed or name == "ungrouped":
            continue
        if (other := first.setdefault(in_fleet, name)) != name:
            raise InvalidInput(
                f"the groups {other} and {name} have the name {in_fleet} in the fleet",
                expected="one name for each group",
                do=f"change {NAME_VARIABLE} of one of them, or the name in its {GROUP_VARIABLE}",
            )


def _owners(inventory: AnsibleInventory, wanted: list[str]) -> dict[str, list[str]]:
    """Return group → its hosts, each host in one group; hosts without such a group form another one.

    Without wanted groups all are taken, in order. One with children, or that shares a host with an earlier
    one, owns none.

    Raises:
        InvalidInput: a wanted group does not exist.
    """
    unknown = [name for name in wanted if name not in inventory.groups]
    if unknown:
        raise InvalidInput(
            f"the inventory has no group {', '.join(unknown)}", expected=", ".join(inventory.groups)
        )
    owned: set[str] = set()
    owners: dict[str, list[str]] = {}
    for name in wanted or [each for each in inventory.groups if each not in ("all", "ungrouped")]:
        hosts = inventory.groups[name].hosts
        if hosts and owned.isdisjoint(hosts) and not inventory.groups[name].children:
            owners[name] = list(hosts)
            owned |= set(hosts)
    left = [host for host in inventory.hosts if host not in owned]
    if left:
        names = ("hosts", *(f"other_hosts{number}" for number in ("", *range(2, len(inventory.groups) + 3))))
        owners[next(name for name in names if name not in inventory.groups)] = left
    return owners


def _stated_kind(name: str, said: ImportHints) -> dict[str, str]:
    """Return the stated `profile` and `os` of a group.

    Raises:
        InvalidInput: one of them is not stated.
    """
    found = {}
    for what, hint in (
        ("profile", "a name that `gpuprov inventory profiles` lists"),
        ("os", "ubuntu24.04, …"),
    ):
        stated = said.of(what, name)
        if stated is None:
            raise InvalidInput(
                f"the {what} of the group {name} is not stated",
                expected=hint,
                do=f"give --{what} {name}=NAME, or --{what} NAME for all groups; if it has no GPUs,"
                " --group GROUP for each one that has",
            )
        found[what] = stated
    return found


def _own(stated: Mapping[str, Any], lifted: Collection[str], *, ours: bool = False) -> dict[str, Any]:
    """Return the site's variables, without those that the fleet states in other keys; with `ours` also
    without connection settings and variables of gpuprov's roles.
    """
    return {
        key: value
        for key, value in stated.items()
        if key not in OURS
        and key not in lifted
        and not (ours and (key in CONNECTION or key.startswith(role_prefixes())))
    }


def _further(
    inventory: AnsibleInventory,
    owners: Mapping[str, list[str]],
    shown: Mapping[str, str],
    lifted: Collection[str],
) -> dict[str, Any]:
    """Return the groups that own no host, with their hosts, children and variables; without empty and
    computed ones.

    Args:
        owners: group of the fleet → its hosts.
        shown: group → its name in the fleet.
        lifted: variables that became settings.
    """
    found = {}
    computed = set(_vars(inventory, "all").get(KINDS_VARIABLE, ()))
    for name, group in inventory.groups.items():
        if name in owners or name in computed or name == "ungrouped":
            continue
        own = _own(group.vars, lifted)
        children = [] if name == "all" else [shown.get(child, child) for child in group.children]
        hosts = fold_hosts({host: host for host in group.hosts}) if group.hosts else ""
        stated = {"hosts": hosts, "children": children, "vars": own}
        if any(stated.values()):
            found[shown[name]] = {key: value for key, value in stated.items() if value}
    return found
