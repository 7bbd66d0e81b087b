"""Check of the mode of IMEX against hardware and NVLink domains."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from gpuprov.errors import InvalidInput, Refused
from gpuprov.model.lock import LockedGroup
from gpuprov.model.nodeset import fold
from gpuprov.model.racks import Grouping, place_of_hosts
from gpuprov.roles.imex import ON_HOSTS, nodes


def check_imex(groups: Mapping[str, LockedGroup], domains: Grouping | None) -> None:
    """Check each group that states a mode of IMEX: its hardware, and for daemons of hosts their domain.

    All nodes of an NVLink domain have the same list of nodes, so that the domain is one group.

    Raises:
        Refused: the hardware has no IMEX, or a domain is split between groups.
        InvalidInput: hosts have no domain or no address.
    """
    domain_of = place_of_hosts(domains)
    for name, group in groups.items():
        mode = group.setting("imex")
        if mode in (None, "off"):
            continue
        if group.components.imex is None:
            raise Refused(
                f"{name}: imex is {mode}, and {group.hardware.gpu_model} has no NVLink to others [imex-gpu]",
                do=f"remove imex from groups.{name}.settings",
            )
        if mode in ON_HOSTS:
            _check_domain(name, group, mode, domains or {}, domain_of)


def _check_domain(
    name: str, group: LockedGroup, mode: str, domains: Grouping, domain_of: Mapping[str, str]
) -> None:
    """Check that a group's hosts are exactly those of one NVLink domain, each with an IP address.

    Args:
        mode: of the setting `imex`, for messages.
        domain_of: host → its domain in `domains`.

    Raises:
        InvalidInput: a host is in no domain, or has a name in place of an address.
        Refused: the hosts are in several domains, or a domain has further hosts.
    """
    if without := [host for host in group.hosts if host not in domain_of]:
        raise InvalidInput(
            f"{name}: imex is {mode}, and {fold(without)} is in no NVLink domain",
            expected="all hosts of the group in one domain",
            do=f"state it in fleet.yml: nvlink_domains: {{NAME: {fold(group.hosts)!r}}}",
        )
    found = sorted({domain_of[host] for host in group.hosts})
    if len(found) > 1:
        raise Refused(
            f"{name}: imex is {mode}, and its hosts are in {len(found)} NVLink domains [imex-domain]",
            expected="one group for each domain, as all nodes of a domain have the same list",
            do=f"split groups.{name}",
        )
    if outside := [host for host in domains[found[0]] if host not in group.hosts]:
        raise Refused(
            f"{name}: imex is {mode}, and the NVLink domain {found[0]} is split: {fold(outside)} is in"
            " another group [imex-domain]",
            expected="all hosts of the domain in one group",
            do=f"state {fold(outside)} in groups.{name}.hosts",
        )
    if names := [address for address in nodes(group) if not _is_address(address)]:
        raise InvalidInput(
            f"{name}: imex is {mode}, and {fold(names)} has no address",
            expected="IP addresses, which IMEX reads from its list of nodes",
            do=f"state them: groups.{name}.hosts: {{{names[0]}: 10.0.0.1, …}}",
        )


def _is_address(text: str) -> bool:
    """Return whether a text is an IPv4 or IPv6 address, without a prefix length."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
