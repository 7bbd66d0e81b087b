"""Machines of an imported list, and their conversion to the groups of a fleet."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import count, islice
from typing import Any

from gpuprov.catalog import Catalog
from gpuprov.catalog.gpu_names import find_gpu, instance_named
from gpuprov.catalog.identity import find_system
from gpuprov.errors import InvalidInput, NodeFailed, did_you_mean
from gpuprov.inventory.instances import find_instance, instance_hardware
from gpuprov.model.hardware import HardwareProfile
from gpuprov.model.nodeset import LARGEST, expand, fold
from gpuprov.model.profile import load_profile, profile_paths
from gpuprov.untrusted import on_one_line, shown
from gpuprov.untrusted.names import host_name

LONGEST = 1000
"""Maximum length of a text of a machine, in characters."""


@dataclass(frozen=True)
class Machine:
    """One machine.

    Attributes:
        group: its group or kind in the list; empty if the list has none.
        instance: a cloud's machine type, `aws:p5.48xlarge`.
        gpu: name of its GPU model, as the list writes it.
        ssh: its SSH settings, as the keys of `ssh:`.
        os: id of a system; None if the list does not state it, as for `arch` and `site`.
    """

    name: str
    address: str = ""
    group: str = ""
    instance: str | None = None
    gpu: str | None = None
    gpu_count: int | None = None
    os: str | None = None
    arch: str | None = None
    site: str | None = None
    vars: Mapping[str, Any] = field(default_factory=dict)
    ssh: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise InvalidInput if a text is longer than `LONGEST`: messages contain it."""
        for key, value in vars(self).items():
            if isinstance(value, str) and len(value) > LONGEST:
                seen = f"{key} of the machine {shown(self.name)} has {len(value)} characters: {shown(value)}"
                raise InvalidInput(seen, expected=f"at most {LONGEST}")


@dataclass(frozen=True)
class ImportHints:
    """Profiles and systems that the user states for groups; key "" means every group."""

    profile: Mapping[str, str] = field(default_factory=dict)
    os: Mapping[str, str] = field(default_factory=dict)

    def of(self, what: str, group: str) -> str | None:
        """Return the `profile` or `os` that is stated for a group, or for all groups; else None."""
        stated: Mapping[str, str] = getattr(self, what)
        return stated.get(group) or stated.get("")

    def refuse_unknown(self, groups: Iterable[str]) -> None:
        """Raise InvalidInput if a profile or a system is stated for a group that is not one of these."""
        known = [name for name in groups if name]
        for option, stated in (("--profile", self.profile), ("--os", self.os)):
            if unknown := [name for name in stated if name and name not in known]:
                [name, *_] = unknown
                raise InvalidInput(
                    f"{option} {name}={stated[name]} names no group of the inventory",
                    expected="one of " + on_one_line(", ".join(known))
                    if known
                    else "no group: there are none",
                    do=did_you_mean(name, known) or f"{option} NAME is for all groups",
                )


def listed_of(machines: Iterable[Machine]) -> list[Machine]:
    """Return machines as a list.

    Raises:
        InvalidInput: there are more than `LARGEST`; no more are made.
    """
    listed = list(islice(machines, LARGEST + 1))
    refuse_many(len(listed))
    return listed


def refuse_many(machines: int) -> None:
    """Raise InvalidInput if an import has more than `LARGEST` machines."""
    if machines > LARGEST:
        raise InvalidInput(f"more than {LARGEST} machines", do="import them in parts, as several fleets")


def of_groups(machines: Iterable[Machine], wanted: Iterable[str]) -> list[Machine]:
    """Return the machines of some groups; all without any.

    Raises:
        InvalidInput: a group has no machine.
    """
    listed, names = listed_of(machines), list(wanted)
    known = list(dict.fromkeys(machine.group for machine in listed))
    if unknown := [name for name in names if name not in known]:
        raise InvalidInput(f"no machine is of {', '.join(unknown)}", expected="one of " + ", ".join(known))
    return [machine for machine in listed if not names or machine.group in names]


def groups_of(
    machines: Iterable[Machine],
    said: ImportHints,
    catalog: Catalog,
    narrate: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Return the keys of a fleet: its groups, and the variables of hosts.

    A group with machines of different kinds becomes several groups, `train`, `train-2`, …. Machines of a type
    without GPUs are left out, unless all are, or a profile is stated for their group.

    Args:
        narrate: called with a line about what was left out, and about a profile that several groups get.

    Raises:
        InvalidInput: there is no machine, or too many, the profile or system of a group is not stated, or
            stated for an unknown one, or a name appears twice or is not a valid host name.
    """
    whole = listed_of(machines)
    said.refuse_unknown(dict.fromkeys(machine.group for machine in whole))
    listed = _with_gpus(whole, said, catalog, narrate)
    for machine in listed:
        try:
            host_name(machine.name)
        except NodeFailed as error:
            raise InvalidInput(error.seen, expected=error.expected) from None
    twice = [name for name, times in Counter(machine.name for machine in listed).items() if times > 1]
    if twice or not listed:
        seen = f"{', '.join(twice)} appears twice in the list" if twice else "the list names no machine"
        raise InvalidInput(seen)
    groups: dict[str, dict[str, Any]] = {}
    host_vars: dict[str, Any] = {}
    names: dict[tuple[str, str], str] = {}
    further: dict[str, Iterator[str]] = {}
    for machine in listed:
        kind, stated = _kind(machine, said, catalog), machine.group or "gpu"
        if (key := (stated, json.dumps(kind, sort_keys=True))) not in names:
            left = further.setdefault(stated, _names(stated))
            names[key] = next(name for name in left if _is(groups.get(name), kind))
        name = names[key]
        groups.setdefault(name, {**kind, "hosts": {}})["hosts"][machine.name] = machine
        if machine.vars:
            host_vars[machine.name] = dict(machine.vars)
    report_shared_profile((machine.group for machine in listed), said, narrate)
    folded = {name: group | _reached(group["hosts"]) for name, group in groups.items()}
    return {"groups": folded, **({"host_vars": host_vars} if host_vars else {})}


def _with_gpus(
    machines: list[Machine], said: ImportHints, catalog: Catalog, narrate: Callable[[str], None]
) -> list[Machine]:
    """Return the machines without those whose type the catalog does not have, which are reported; all if
    there are no others. Machines with a stated profile stay.
    """
    left = [
        machine
        for machine in machines
        if machine.instance
        and said.of("profile", machine.group) is None
        and instance_named(catalog, machine.instance) is None
    ]
    if not left or len(left) == len(machines):
        return machines
    types = ", ".join(sorted({str(machine.instance) for machine in left}))
    narrate(
        f"left out, as the catalog has no machine type with GPUs {on_one_line(types)}:"
        f" {on_one_line(', '.join(machine.name for machine in left))}; to import them: --profile GROUP=NAME"
    )
    names = {machine.name for machine in left}
    return [machine for machine in machines if machine.name not in names]


def report_shared_profile(names: Iterable[str], said: ImportHints, narrate: Callable[[str], None]) -> None:
    """Report the groups that get the profile which is stated for all groups, if there are several."""
    groups = dict.fromkeys(name for name in names if name not in said.profile)
    if "" in said.profile and len(groups) > 1:
        narrate(
            f"the groups {on_one_line(', '.join(groups))} get the profile {said.profile['']};"
            " to import only some: --group NAME"
        )


def _reached(machines: Mapping[str, Machine]) -> dict[str, Any]:
    """Return `hosts` of a group, and `ssh` with the settings that all of them share."""
    shared = in_common(machine.ssh for machine in machines.values())
    entries = {
        name: host_entry(machine.address or name, {k: v for k, v in machine.ssh.items() if k not in shared})
        for name, machine in machines.items()
    }
    return {"hosts": fold_entries(entries)} | ({"ssh": shared} if shared else {})


def in_common(stated: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the keys that have the same value everywhere."""
    first, *others = [*stated] or [{}]
    return {key: value for key, value in first.items() if all(each.get(key) == value for each in others)}


def host_entry(address: str, ssh: Mapping[str, Any]) -> str | dict[str, Any]:
    """Return a host's entry in a fleet: its address, and its own SSH settings if it has some."""
    return {"address": address, "ssh": dict(ssh)} if ssh else address


def fold_entries(entries: Mapping[str, str | dict[str, Any]]) -> str | dict[str, Any]:
    """Return hosts in the shortest form that a fleet allows: as `fold_hosts`, or name → entry if one is no
    plain address.
    """
    plain = {host: entry for host, entry in entries.items() if isinstance(entry, str)}
    return fold_hosts(plain) if len(plain) == len(entries) else dict(entries)


def fold_hosts(hosts: Mapping[str, str]) -> str | dict[str, str]:
    """Return names as `gpu[01-08]`, or separated by commas if that changes the order; name → address if one
    differs.
    """
    if any(name != address for name, address in hosts.items()):
        return dict(hosts)
    folded = fold(hosts)
    return folded if expand(folded) == list(hosts) else ",".join(hosts)


def _names(group: str) -> Iterator[str]:
    """Yield possible names of a group without end: `gpu`, `gpu-2`, `gpu-3`, …"""
    yield group
    yield from (f"{group}-{number}" for number in count(2))


def _is(group: dict[str, Any] | None, kind: dict[str, Any]) -> bool:
    """Return whether a group does not exist yet, or has exactly these keys apart from its hosts."""
    return group is None or {key: value for key, value in group.items() if key != "hosts"} == kind


def _kind(machine: Machine, said: ImportHints, catalog: Catalog) -> dict[str, Any]:
    """Return the keys of a machine's group in the fleet.

    Raises:
        InvalidInput: its system or its kind of server is not stated.
    """
    kind = _profile(machine, said, catalog)
    os = said.of("os", machine.group) or machine.os
    if os is None:
        raise InvalidInput(
            f"the system of {machine.name} is not stated", do="give --os ID, or --os GROUP=ID for each group"
        )
    system = find_system(catalog, os)
    kind["os"] = system.id if system else os
    arch = machine.arch or kind.pop("arch", None)
    kind |= {"arch": arch} if arch and arch != "x86_64" else {}
    return kind | ({"site": machine.site} if machine.site else {})


def _profile(machine: Machine, said: ImportHints, catalog: Catalog) -> dict[str, Any]:
    """Return the keys with the profile: the stated one, that of the machine type, or one with these GPUs.

    Raises:
        InvalidInput: no profile is stated, and the machine does not show one.
    """
    stated = said.of("profile", machine.group)
    if stated:
        return {"profile": stated}
    if machine.instance:
        instance = find_instance(catalog, machine.instance)
        whole = _shipped_hardware(instance.profile)
        hardware = instance_hardware(instance, whole).model_dump(mode="json", exclude_unset=True)
        return {"profile": instance.profile, "hardware": hardware, "arch": instance.arch}
    if machine.gpu:
        found = _profile_with(machine.gpu, machine.gpu_count, catalog)
        if found:
            return found
    raise InvalidInput(
        f"the kind of server of {machine.name} is not stated",
        expected="a name that `gpuprov inventory profiles` lists",
        do="give --profile NAME, or --profile GROUP=NAME for each group with GPUs, and --group GROUP to"
        " import only these",
    )


def _profile_with(gpu: str, count: int | None, catalog: Catalog) -> dict[str, Any] | None:
    """Return the keys with a shipped profile of a GPU model, and the number of GPUs if it differs.

    None if no shipped profile has the model.
    """
    try:
        model = find_gpu(catalog, gpu).id
    except InvalidInput:
        return None
    fitting = _profiles_by_gpu(catalog).get(model, {})
    exact = [name for name, hardware in fitting.items() if hardware.gpu.count == count or count is None]
    if exact:
        return {"profile": exact[0]}
    return {"profile": next(iter(fitting)), "hardware": {"gpu": {"count": count}}} if fitting else None


def _profiles_by_gpu(catalog: Catalog) -> dict[str, dict[str, HardwareProfile]]:
    """Return GPU model → name and hardware of its shipped profiles; once for each catalog."""
    found: dict[str, dict[str, HardwareProfile]] = catalog.memo.get("profiles_by_gpu", {})
    if not found:
        for name in profile_paths([]):
            hardware = _shipped_hardware(name)
            if hardware.gpu.model:
                found.setdefault(find_gpu(catalog, hardware.gpu.model).id, {})[name] = hardware
        catalog.memo["profiles_by_gpu"] = found
    return found


@cache
def _shipped_hardware(name: str) -> HardwareProfile:
    """Return the hardware of a shipped profile; its files are read once."""
    return load_profile(name, []).profile.hardware
