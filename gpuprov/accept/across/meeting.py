"""Addresses at which the members of a communicator meet, held against the node that made its id.

NCCL's id is no random number: it is a `struct ncclBootstrapHandle` (NCCL, src/include/bootstrap.h), and each
member opens a TCP connection, as root, to the address in it.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_interface,
)
from typing import Any

from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.probe.node.network import interface_addresses
from gpuprov.ssh.transport import Target

Address = IPv4Address | IPv6Address
Interface = IPv4Interface | IPv6Interface
Network = IPv4Network | IPv6Network
ID = re.compile(r"[0-9a-f]{256}")
"""The id of a communicator, 128 bytes in hexadecimal: the only text of a node that others receive."""
INTERFACES, LONGEST = 256, 64
"""Most addresses of interfaces in a node's description of itself, and characters of one."""
RESOLVERS = 32
"""Names that are resolved at the same time."""
HANDLE = struct.Struct("<8sH2s")
"""Magic number, address family and port (big-endian) of an id; the address follows."""
FAMILIES = {2: slice(12, 16), 10: slice(16, 32)}
"""Linux's number of an address family → the bytes of its address in an id; all others after the port are 0:
flow label and scope of IPv6, and what NCCL does not use.
"""


@dataclass(frozen=True)
class Meeting:
    """Addresses of nodes, by which their ids are judged.

    Args:
        known: node → addresses to which the controller connects; empty for a name that it cannot resolve.
        stated: node → addresses and networks of its interfaces, as it states them itself.
    """

    known: Mapping[str, Collection[Address]] = field(default_factory=dict)
    stated: Mapping[str, Sequence[Interface]] = field(default_factory=dict)

    def check(self, node: str, made: Any) -> str:
        """Return the id of a communicator that a node made.

        The address in it is one to which the controller connects for this node, or is in a network where
        most other nodes have an interface, and no node the address to which the controller connects: there
        a node's own address is known. It is no loopback, link-local, multicast or unspecified address. What
        the node itself states about its interfaces does not count.

        Raises:
            NodeFailed: it is no id, or its address may not be the node's.
        """
        if not isinstance(made, str) or not ID.fullmatch(made):
            raise NodeFailed("its id of a communicator is invalid", expected="256 hexadecimal digits")
        address, own = led_to(bytes.fromhex(made)), self.known.get(node, ())
        special = address.is_loopback or address.is_link_local or address.is_multicast
        if special or address.is_unspecified or not (address in own or self._is_shared(node, address)):
            listed = ", ".join(map(str, sorted(own, key=str)))
            raise NodeFailed(
                f"its id of a communicator leads to {address}",
                expected=f"{listed or 'its address'}, or an address in another network of the other nodes",
                do="set NCCL_SOCKET_IFNAME in `settings.nccl` to the interface with an expected address",
            )
        return made

    def _is_shared(self, node: str, address: Address) -> bool:
        """Return whether more than half of the other nodes have an interface in a network of this address;
        networks in which the controller connects to a node do not count.
        """
        others = [networks for name, networks in self._networks.items() if name != node]
        near = sum(any(address in network for network in networks) for networks in others)
        return 2 * near > len(others)

    @cached_property
    def _networks(self) -> dict[str, list[Network]]:
        """Return node → networks of its interfaces in which the controller connects to no node."""
        logins = {address for addresses in self.known.values() for address in addresses}
        return {
            node: [
                network
                for network in {each.network for each in interfaces}
                if not any(address in network for address in logins)
            ]
            for node, interfaces in self.stated.items()
        }


def led_to(made: bytes) -> Address:
    """Return the address in an id of 128 bytes.

    Raises:
        NodeFailed: it is not one of NCCL's: an unknown family, no port, or other bytes than its address.
    """
    magic, family, port = HANDLE.unpack_from(made)
    place = FAMILIES.get(family)
    address = made[place] if place else b""
    if place is None or port == b"\0\0" or made != _handle(magic, family, port, place, address):
        raise NodeFailed(
            "its id of a communicator is not one of NCCL's",
            expected="a magic number, an IP address, a port, and zeros",
        )
    return ip_address(address)


def _handle(magic: bytes, family: int, port: bytes, place: slice, address: bytes) -> bytes:
    """Return the id of 128 bytes with these values."""
    made = bytearray(128)
    HANDLE.pack_into(made, 0, magic, family, port)
    made[place] = address
    return bytes(made)


def interfaces_of(document: Mapping[str, Any]) -> list[Interface]:
    """Return the interfaces that a node's description of itself states, `ADDRESS/PREFIX` each; leave out what
    is no address.
    """
    found = []
    for text in document.get("addresses", []):
        with suppress(ValueError):
            found.append(ip_interface(text if isinstance(text, str) and len(text) < LONGEST else ""))
    return found


def known_addresses(nodes: Iterable[Target]) -> dict[str, frozenset[Address]]:
    """Return node → addresses to which the controller connects. This machine has those of its interfaces,
    a name that cannot be resolved here, as behind a jump host, none.
    """
    listed = list(nodes)
    with ThreadPoolExecutor(RESOLVERS) as resolvers:
        return dict(zip((node.name for node in listed), resolvers.map(_known, listed), strict=True))


def _known(node: Target) -> frozenset[Address]:
    """Return the addresses to which the controller connects for a node; none if its name cannot be resolved
    here.
    """
    try:
        if node.route.local:
            own = interface_addresses().values()
            return frozenset(ip_interface(text).ip for addresses in own for text in addresses)
        found = socket.getaddrinfo(node.route.hostname, None, type=socket.SOCK_STREAM)
        return frozenset(ip_address(str(row[4][0]).partition("%")[0]) for row in found)
    except (OSError, UnicodeError, GpuprovError):
        return frozenset()
