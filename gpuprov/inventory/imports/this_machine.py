"""Addresses of this machine in an imported fleet: only a person makes the controller a node."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpuprov.errors import InvalidInput
from gpuprov.model.connection import LOCAL
from gpuprov.model.fleet import Group
from gpuprov.probe.node.network import interface_addresses
from gpuprov.untrusted import on_one_line

NAMES = re.compile(r"(?i)(?:.*\.)?(?:localhost([46]?)(?:\.localdomain\1)?|ip6-localhost|ip6-loopback)\.?")
"""Names of this machine in /etc/hosts of Debian and Red Hat, and those below `localhost` (RFC 6761)."""
HOSTS = Path("/etc/hosts")


def refuse_this_machine(fleet: Mapping[str, Any], source: str, narrate: Callable[[str], None]) -> None:
    """Refuse a host whose address is this machine: its group's lock would be applied to the controller.

    A host with an address of this machine's network is reached by SSH, as any other: it is only named.

    Args:
        fleet: keys of a fleet, from an untrusted file.
        source: name of the file.
        narrate: called with a line about such a host.

    Raises:
        InvalidInput: with the host and its address.
    """
    groups, own = fleet.get("groups"), _own_addresses()
    for group in groups.values() if isinstance(groups, Mapping) else ():
        for host, address in _hosts(group).items():
            if is_this_machine(address):
                raise InvalidInput(
                    on_one_line(f"{source}: the address of {host} is {address}: this machine"),
                    expected="the address of another machine",
                    do=f"if this machine is a node, add `{LOCAL}` to fleet.yml after the import",
                )
            if _plain(address) in own:
                narrate(
                    on_one_line(f"{host} ({address}) is this machine: remove it if it is not to be a node")
                )


def _own_addresses() -> set[str]:
    """Return the names of this machine, of the kernel and of /etc/hosts, and the addresses of its interfaces
    if the kernel states them, each as `_plain` does.
    """
    found = {_plain(socket.gethostname())}
    with suppress(OSError, AttributeError):  # macOS has no netlink
        listed = interface_addresses().values()
        found |= {_plain(text.partition("/")[0]) for addresses in listed for text in addresses}
    with suppress(OSError):
        found |= {_plain(name) for name in _names_of(HOSTS.read_text("utf-8", "replace"), found)}
    return found


def _names_of(hosts: str, addresses: Collection[str]) -> Iterator[str]:
    """Yield the names that a text as /etc/hosts gives to this machine: to one of its addresses, or to a
    loopback address.
    """
    for line in hosts.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        if _plain(address) in addresses or is_this_machine(address):
            yield from names


def _hosts(group: object) -> Mapping[str, str]:
    """Return the hosts of a group and their addresses; none for a group that the fleet's model refuses."""
    stated = group.get("hosts") if isinstance(group, Mapping) else None
    try:
        return Group.model_validate({"profile": "p", "os": "o", "hosts": stated}).hosts
    except ValidationError:
        return {}


def is_this_machine(address: str) -> bool:
    """Return whether an address is `local`, a loopback address or name, or an unspecified address, which
    Linux takes for loopback.
    """
    if address == LOCAL or NAMES.fullmatch(address):
        return True
    ip = _ip(address)
    return ip is not None and (ip.is_loopback or ip.is_unspecified)


def _plain(address: str) -> str:
    """Return the one spelling of an address or a name: a resolver takes several for the same machine."""
    return str(_ip(address) or address.lower().rstrip("."))


def _ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a text is for a resolver, also by a short form of IPv4 (`127.1`,
    `0x7f000001`) or mapped to IPv6; None for a name.
    """
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        try:
            ip = ipaddress.IPv4Address(socket.inet_aton(address))
        except (OSError, UnicodeError):
            return None
    return getattr(ip, "ipv4_mapped", None) or ip
