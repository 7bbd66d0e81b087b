"""A fleet file for discovered hosts."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from gpuprov.catalog import Catalog
from gpuprov.catalog.identity import find_system
from gpuprov.errors import InvalidInput
from gpuprov.inventory.discover.match import Match
from gpuprov.inventory.imports.machine import fold_hosts
from gpuprov.model.connection import LOCAL, Connection, parse_destination
from gpuprov.probe.facts import Facts


def propose(
    found: Mapping[str, tuple[Facts, Match]],
    names: Mapping[str, str],
    connection: Connection,
    catalog: Catalog,
) -> dict[str, Any]:
    """Return the keys of a fleet with a group for each profile, system and architecture.

    A group has the profile's name; a second one of that profile also has the system, then the architecture.

    Args:
        found: address → the host's facts and its match; hosts without a profile are left out.
        names: address → the host's name in the fleet.
        connection: SSH settings of the fleet.
    """
    groups: dict[str, dict[str, Any]] = {}
    for address, (facts, match) in found.items():
        if match.profile is None:
            continue
        kind = {"profile": match.profile, "os": system_of(facts, catalog)}
        kind |= {"arch": facts.arch} if facts.arch != "x86_64" else {}
        name = next(name for name in _names(match.profile, kind) if _same(groups.get(name), kind))
        groups.setdefault(name, {**kind, "hosts": {}})["hosts"][names[address]] = address
    folded = {name: {**group, "hosts": fold_hosts(group["hosts"])} for name, group in groups.items()}
    return {"groups": folded, "ssh": connection.model_dump(mode="json", exclude_defaults=True)}


def names_of(found: Mapping[str, Facts]) -> dict[str, str]:
    """Return host as given → its name in the fleet: as given, or its host name for an address or `local`.

    The user is left out, a given port is appended (`gpu01-2222`). An own host name that is taken is not used.
    """
    taken: set[str] = set()
    names = {}
    for host, facts in found.items():
        own = facts.host.partition(".")[0]
        to = parse_destination(host)
        called = f"{to.host}-{to.port}" if to.port else to.host
        nameless = _is_address(to.host) or host == LOCAL
        name = own if nameless and own and own not in taken else called
        taken.add(name)
        names[host] = name
    return names


def _is_address(host: str) -> bool:
    """Return whether a text is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def system_of(facts: Facts, catalog: Catalog) -> str:
    """Return the catalog's id of a host's system; its own id and version if the catalog does not have it."""
    named = facts.os.id + facts.os.version
    try:
        system = find_system(catalog, named)
    except InvalidInput:
        return named
    return system.id if system else named


def _names(profile: str, kind: Mapping[str, str]) -> tuple[str, ...]:
    """Return the possible names of a group, the shortest first."""
    return (profile, f"{profile}-{kind['os']}", f"{profile}-{kind['os']}-{kind.get('arch', 'x86_64')}")


def _same(group: Mapping[str, Any] | None, kind: Mapping[str, str]) -> bool:
    """Return whether a group is None (not there yet) or has these keys and values, apart from its hosts."""
    return group is None or {key: value for key, value in group.items() if key != "hosts"} == kind
