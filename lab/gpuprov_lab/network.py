"""Addresses, namespaces and the one nftables table that joins lab nodes to the package archive.

The kernel's state is the only record: an address is taken while a veth of it exists, and the removal of the
last veth also removes the table and the forwarding. So a killed run cannot leave a contradictory record.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from gpuprov.errors import GpuprovError
from gpuprov_lab.host import MACHINE_LOCK, execute, locked

# RFC 2544 keeps 198.18.0.0/15 for tests of network gear: no network at home or at work routes it.
RANGE = IPv4Network("198.18.0.0/16")
GATEWAY = RANGE[1]
TABLE = "gpuprov_lab"
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
NAMESPACES = Path("/run/netns")


@dataclass(frozen=True)
class Link:
    """A node's place on the lab network.

    Attributes:
        namespace: name of its network namespace.
        address: its IPv4 address.
    """

    namespace: str
    address: str

    @property
    def veth(self) -> str:
        """Name of the host's end. It contains the address, so two links never share one."""
        offset = int(IPv4Address(self.address)) - int(RANGE.network_address)
        return f"gplab{offset:04x}"

    @property
    def path(self) -> Path:
        """Path of the namespace, with which it can be joined."""
        return NAMESPACES / self.namespace


def free_address(taken: Collection[str], choose: Callable[[int], int] = random.randrange) -> str:
    """Return an address that no node has; raise GpuprovError if half of all are taken.

    It is drawn at random so that the next node does not get the address of the last one, to which clients may
    still keep SSH connections open.

    Args:
        choose: function that returns a number from 0 to below its argument.
    """
    if len(taken) >= RANGE.num_addresses // 2:
        raise GpuprovError(f"{len(taken)} lab nodes hold addresses of {RANGE}", do="take a lab down")
    while (address := str(RANGE[2 + choose(RANGE.num_addresses - 3)])) in taken:
        pass
    return address


def taken_addresses(ip_json: str) -> set[str]:
    """Return the addresses of all labs' nodes, from `ip -j -4 addr show`: the peers of the labs' veths."""
    return {
        entry["address"]
        for interface in json.loads(ip_json or "[]")
        if interface.get("ifname", "").startswith("gplab")
        for entry in interface["addr_info"]
        if "address" in entry
    }


def connect(namespace: str, remember: Callable[[Link], None], ports: Collection[int]) -> Link:
    """Create a node's namespace, with its own address and a route to the package archive; return the link.

    Forwarding is enabled, and the machine's lock held meanwhile.

    Args:
        namespace: name for it, unique on this machine.
        remember: called with the link before anything is made, so that a killed run can be mended.
        ports: TCP ports of the archive.

    Raises:
        GpuprovError: no address is free, or ip or nft fails.
    """
    with locked(MACHINE_LOCK):
        link = Link(namespace, free_address(taken_addresses(execute(["ip", "-j", "-4", "addr", "show"]))))
        remember(link)
        _open_gate(ports)
        execute(["ip", "netns", "add", namespace])
        execute(["ip", "-batch", "-"], input=_host_side(link))
        execute(["ip", "-n", namespace, "-batch", "-"], input=_node_side(link))
    return link


def _host_side(link: Link) -> str:
    """Return the commands of ip(8) for the host's end of a link."""
    return (
        f"link add {link.veth} type veth peer name eth0 netns {link.namespace}\n"
        f"addr add {GATEWAY} peer {link.address} dev {link.veth}\n"
        f"link set {link.veth} up\n"
    )


def _node_side(link: Link) -> str:
    """Return the commands of ip(8) for the node's end of a link."""
    return (
        "link set lo up\n"
        f"addr add {link.address} peer {GATEWAY} dev eth0\n"
        "link set eth0 up\n"
        f"route add default via {GATEWAY}\n"
    )


def disconnect(link: Link) -> None:
    """Remove a link, or its remains after a killed run; with the last one, also the table and forwarding.

    Holds the machine's lock. NodeFailed if ip or nft fails.
    """
    with locked(MACHINE_LOCK):
        if Path("/sys/class/net", link.veth).exists():
            execute(["ip", "link", "delete", link.veth])
        if link.path.exists():
            execute(["ip", "netns", "delete", link.namespace])
        _close_gate_if_last()


def ruleset(ports: Collection[int], forwarding: str) -> str:
    """Return the lab's table: nodes reach each other, name servers and the archive's ports.

    Nothing else is forwarded from them, and no new connection to them.

    The earlier value of `ip_forward` is kept as the table's comment, so that it exists as long as the table.
    """
    archive = ", ".join(map(str, sorted(ports)))
    return f"""\
add table ip {TABLE} {{ comment "ip_forward was {forwarding}"; }}
flush table ip {TABLE}
table ip {TABLE} {{
  chain forward {{
    type filter hook forward priority filter; policy accept;
    ct state established,related accept
    ip saddr {RANGE} ip daddr {RANGE} accept
    ip saddr {RANGE} meta l4proto {{ tcp, udp }} th dport 53 accept
    ip saddr {RANGE} tcp dport {{ {archive} }} accept
    ip saddr {RANGE} reject with icmp admin-prohibited
    ip daddr {RANGE} reject with icmp admin-prohibited
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {RANGE} ip daddr != {RANGE} masquerade
  }}
}}
"""


def _open_gate(ports: Collection[int]) -> None:
    """Load the lab's nftables table with these ports, and enable forwarding, whose state before is kept in
    the table.
    """
    table = _table()
    forwarding = _forwarding_before(table) if table else FORWARDING.read_text().strip()
    execute(["nft", "-f", "-"], input=ruleset(ports, forwarding))
    FORWARDING.write_text("1\n")


def _close_gate_if_last() -> None:
    """Remove the table and the file of the machine's lock, and restore forwarding, if no link is left.

    The caller holds that lock.
    """
    table = _table()
    if not table or any(Path("/sys/class/net").glob("gplab*")):
        return
    FORWARDING.write_text(_forwarding_before(table) + "\n")
    execute(["nft", "delete", "table", "ip", TABLE])
    MACHINE_LOCK.unlink()


def _table() -> str:
    """Return the lab's table as nft prints it; "" if it does not exist."""
    if f"table ip {TABLE}\n" not in execute(["nft", "list", "tables"]):
        return ""
    return execute(["nft", "list", "table", "ip", TABLE])


def _forwarding_before(table: str) -> str:
    """Return `ip_forward` from before the lab, "0" or "1", as the table's comment states it; else the current
    value.
    """
    found = re.search(r"ip_forward was ([01])", table)
    return found.group(1) if found else FORWARDING.read_text().strip()
