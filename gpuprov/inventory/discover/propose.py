"""A fleet file for discovered hosts."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from gpuprov.catalog import Catalog
from gpuprov.catalog.identity import find_system
from gpuprov.errors import GpuprovError, InvalidInput
from gpuprov.inventory.discover.match import Match
from gpuprov.inventory.imports.machine import fold_hosts
from gpuprov.model.connection import LOCAL, Connection, host_name, parse_destination
from gpuprov.probe.facts import Facts
from gpuprov.ssh.contained import contained


@dataclass(frozen=True)
class Identity:
    """The values of a host that a fleet states: its own name, id and version of its system, architecture.

    They are kept for all hosts in place of the facts, which can have many times their size.
    """

    name: str
    system: str
    arch: str

    @classmethod
    def of(cls, facts: Facts) -> Identity:
        """Return the values from a host's facts; raise Missing if they lack one."""
        return cls(facts.host, facts.os.id + facts.os.version, facts.arch)


def propose(
    found: Mapping[str, tuple[Identity, Match]],
    names: Mapping[str, str],
    connection: Connection,
    catalog: Catalog,
) -> tuple[dict[str, Any], dict[str, GpuprovError]]:
    """Return the keys of a fleet with a group for each profile, system and architecture, and address → error.

    The errors are of hosts with the name of an earlier host, and of hosts whose facts cause an unforeseen
    exception; they are in no group. A group has the profile's name; a second one of that profile also has the
    system, then the architecture, then a number.

    Args:
        found: address → the host's identity and its match; hosts without a profile are left out.
        names: address → the host's name in the fleet.
        connection: SSH settings of the fleet.
    """
    groups: dict[str, dict[str, Any]] = {}
    failed: dict[str, GpuprovError] = {}
    taken: dict[str, str] = {}
    for address, (host, match) in found.items():
        if match.profile is None:
            continue
        kind = contained(address, partial(_kind, match.profile, host, catalog))
        if isinstance(kind, GpuprovError):
            failed[address] = kind
            continue
        first = taken.setdefault(names[address], address)
        if first != address:
            failed[address] = InvalidInput(
                f"its name in the fleet, {names[address]}, is that of {first}",
                do="discover only one of them, and add the other to the fleet under another name",
            )
            continue
        name = next(name for name in _names(match.profile, kind) if _same(groups.get(name), kind))
        groups.setdefault(name, {**kind, "hosts": {}})["hosts"][names[address]] = address
    folded = {name: {**group, "hosts": fold_hosts(group["hosts"])} for name, group in groups.items()}
    return {"groups": folded, "ssh": connection.model_dump(mode="json", exclude_defaults=True)}, failed


def _kind(profile: str, host: Identity, catalog: Catalog) -> dict[str, str]:
    """Return the keys that all hosts of a group share: profile, system, and architecture unless x86_64.

    An unknown system is no error, see `system_of`.
    """
    arch = {"arch": host.arch} if host.arch != "x86_64" else {}
    return {"profile": profile, "os": system_of(host.system, catalog), **arch}


def names_of(found: Mapping[str, str]) -> dict[str, str]:
    """Return host as given → its name in the fleet: as given, or its host name for an address or `local`.

    The user is left out, a given port is appended (`gpu01-2222`). A host's own name is not used if it is
    invalid in a fleet, that of another host, which then has not got it either, or a name as given of any
    host. Names as given may be equal: `a@gpu01` and `b@gpu01` are both `gpu01`.

    Args:
        found: host as given → its own host name.

    Raises:
        ValueError: a host is not `[USER@]HOST[:PORT]`.
    """
    names = {host: _as_given(host) for host in found}
    given, own = set(names.values()), {host: own_name(name) for host, name in found.items()}
    times = Counter(name.lower() for name in own.values() if name)
    for host, name in own.items():
        sole = name and name not in given and times[name.lower()] == 1
        if name and sole and (host == LOCAL or _is_address(parse_destination(host).host)):
            names[host] = name
    return names


def own_name(stated: str) -> str | None:
    """Return a host's own name without domain; None if a fleet cannot have it as a host's name."""
    own = stated.partition(".")[0]
    try:
        return host_name(own) if own != LOCAL else None
    except ValueError:
        return None


def _as_given(host: str) -> str:
    """Return the name in the fleet of a host `[USER@]HOST[:PORT]`: HOST and PORT, with `-` for each `:`.

    Raises:
        ValueError: the text has another form.
    """
    to = parse_destination(host)
    return "-".join([to.host.replace(":", "-").strip("-"), *([str(to.port)] if to.port else [])])


def _is_address(host: str) -> bool:
    """Return whether a text is an IPv4 or IPv6 address, without brackets or a prefix length."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def system_of(named: str, catalog: Catalog) -> str:
    """Return the catalog's id of a system; its own id and version if the catalog does not have these."""
    try:
        system = find_system(catalog, named)
    except InvalidInput:
        return named
    return system.id if system else named


def _names(profile: str, kind: Mapping[str, str]) -> Iterator[str]:
    """Yield the possible names of a group, the shortest first, and then numbered ones without end."""
    yield profile
    yield f"{profile}-{kind['os']}"
    longest = f"{profile}-{kind['os']}-{kind.get('arch', 'x86_64')}"
    yield longest
    yield from (f"{longest}-{number}" for number in count(2))


def _same(group: Mapping[str, Any] | None, kind: Mapping[str, str]) -> bool:
    """Return whether a group is None (not there yet) or has these keys and values, apart from its hosts."""
    return group is None or {key: value for key, value in group.items() if key != "hosts"} == kind
