"""Settings of the firewall as nftables rules, each as `nft list` prints it on a node with /etc/protocols.

gpuprov has one separate table: other tables, including Docker's, are neither read nor changed. No other table
can accept what its chain drops; other tables may drop what it accepts.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

from gpuprov.errors import Refused
from gpuprov.model.connection import LOCAL
from gpuprov.model.settings.access import ANYWHERE, Firewall

TABLE = "inet gpuprov"
UNIT = "gpuprov-firewall.service"
INPUT = "type filter hook input priority filter; policy drop;"
FORWARD = "type filter hook forward priority filter; policy accept;"
BASICS = [
    "ct state established,related accept",
    "ct state invalid drop",
    'iif "lo" accept',
    "meta l4proto icmp accept",
    "meta l4proto ipv6-icmp accept",
]
NUMBERS = {"icmp": 1, "ipv6-icmp": 58}
"""Protocol of `BASICS` → its number (https://www.iana.org/assignments/protocol-numbers)."""
_PROTOCOL = re.compile(r"(?<=\bl4proto )\S+")
# Replies to a DHCPv6 client answer a multicast request, so they are not "established".
DHCP = ["udp dport 546 accept"]


def ruleset(firewall: Firewall, ssh_ports: Iterable[int], hosts: Mapping[str, str]) -> dict[str, Any]:
    """Return the table: `networks` (set → its elements) and the chains `input` and `forward`, rules in order.

    Args:
        ssh_ports: the ports that sshd listens on.
        hosts: name → address of every node of the fleet.

    Raises:
        Refused: nodes of the fleet are known by name only, and no networks are stated.
    """
    fleet = firewall.fleet if firewall.fleet is not None else list(_addresses(tuple(hosts.items())))
    table = _Table()
    ssh = table.sources("ssh", firewall.ssh_from)
    ours = table.sources("fleet", fleet)
    monitor = table.sources("monitor", firewall.monitor_from)
    rules = [*BASICS, *DHCP]
    trusted = [f"iifname {_interface(name)} " for name in firewall.trusted_interfaces]
    rules += [f"{source}accept" for source in trusted]
    rules += [f"{source}tcp dport {_ports(ssh_ports)} accept" for source in ssh]
    rules += [f"{source}accept" for source in ours]
    rules += [f"{source}tcp dport {_ports(firewall.monitor_ports)} accept" for source in monitor]
    for number, opening in enumerate(firewall.open, start=1):
        sources = table.sources(f"open{number}_", opening.sources)
        rules += [f"{source}{opening.protocol} dport {_ports(opening.ports)} accept" for source in sources]
    return {
        "networks": table.networks,
        "input": [INPUT, *rules],
        "forward": [FORWARD, *_published(firewall, [*trusted, *ours, *monitor])],
    }


def ssh_networks(firewall: Mapping[str, Any] | None) -> list[str]:
    """Return the networks from which a locked firewall allows SSH, also those of the fleet.

    [] if any address is allowed: without a firewall, without networks for SSH, and with trusted interfaces,
    through which a connection may come.
    """
    networks = firewall["ruleset"]["networks"] if firewall else {}
    if not firewall or firewall["trusted_interfaces"] or not any(name.startswith("ssh") for name in networks):
        return []
    allowed = (elements for name, elements in networks.items() if name.startswith(("ssh", "fleet")))
    return [network for elements in allowed for network in elements]


def admits(networks: Collection[str], address: str) -> bool:
    """Return whether SSH from an address is allowed: by one of `ssh_networks`, if there are none, or as
    loopback.

    Raises:
        ValueError: it is no IP address.
    """
    source = ipaddress.ip_address(address)
    allowed = map(ipaddress.ip_network, networks)
    return source.is_loopback or not networks or any(source in network for network in allowed)


def by_number(rules: Iterable[str]) -> list[str]:
    """Return the rules as `nft -p` prints them; these load on a node without /etc/protocols, also at boot."""
    return [_PROTOCOL.sub(lambda name: str(NUMBERS.get(name[0], name[0])), rule) for rule in rules]


def _published(firewall: Firewall, sources: list[str]) -> list[str]:
    """Return rules for ports of containers: their connections are forwarded, past the input chain.

    [] if the setting `published` allows connections from any address.

    The rules accept connections from containers and from `sources`, and drop others to published ports, and
    to containers' bridges: with a route to a bridge's network a packet needs no published port.

    Args:
        sources: starts of rules, as `_Table.sources` returns them.
    """
    if firewall.published == "any":
        return []
    return [
        "ct state established,related accept",
        *(f"{bridge} accept" for bridge in _bridges("iifname", firewall.uplinks)),
        *(f"{source}accept" for source in sources),
        "ct status dnat drop",
        *(f"{bridge} drop" for bridge in _bridges("oifname", firewall.uplinks)),
    ]


def _bridges(direction: str, uplinks: Iterable[str]) -> list[str]:
    """Return starts of rules for packets from (`iifname`) or to (`oifname`) bridges of containers.

    A bridge of `docker network create` is named br- and twelve hexadecimal digits, for which nft has no
    pattern.
    """
    named = [f"{direction} {_interface(name)}" for name in ("docker*", "podman*", "cni-podman*")]
    others = "".join(f"{direction} != {_interface(name)} " for name in uplinks)
    return [*named, f'{others}{direction} "br-*"']


class _Table:
    """The networks of a table's sets: set → its elements."""

    def __init__(self) -> None:
        self.networks: dict[str, list[str]] = {}

    def sources(self, name: str, networks: list[str]) -> list[str]:
        """Add a set for each IP version that has networks; return the start of a rule for each set.

        Without networks there is no start, so no rule. With both of `ANYWHERE`: no set, and one empty start.
        """
        if set(networks) >= set(ANYWHERE):
            return [""]
        found = []
        for version, word in ((4, "ip"), (6, "ip6")):
            elements = list(_collapsed(tuple(networks), version))
            if elements:
                self.networks[f"{name}{version}"] = elements
                found.append(f"{word} saddr @{name}{version} ")
        return found


@lru_cache(maxsize=16)
def _collapsed(networks: tuple[str, ...], version: int) -> tuple[str, ...]:
    """Return the networks of one IP version as nft prints them, without overlaps, which a set refuses.

    Each group of a fleet has the same ones, the fleet's addresses.
    """
    if version == 4:
        v4 = [n for n in map(ipaddress.ip_network, networks) if isinstance(n, ipaddress.IPv4Network)]
        return tuple(_element(network) for network in ipaddress.collapse_addresses(v4))
    v6 = [n for n in map(ipaddress.ip_network, networks) if isinstance(n, ipaddress.IPv6Network)]
    return tuple(_element(network) for network in ipaddress.collapse_addresses(v6))


def _element(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> str:
    """Return a network as nft prints it, a single address without a prefix length."""
    single = network.prefixlen == network.max_prefixlen
    return str(network.network_address) if single else str(network)


def _ports(ports: Iterable[int]) -> str:
    """Return ports as nft prints them: `22` or `{ 22, 2222 }`."""
    several = sorted(set(ports))
    return str(several[0]) if len(several) == 1 else "{ " + ", ".join(map(str, several)) + " }"


def _interface(name: str) -> str:
    """Return the name of an interface as nft prints it, in quotes."""
    return f'"{name}"'


@lru_cache(maxsize=4)
def _addresses(hosts: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Return the nodes' addresses as networks of one address.

    Leave out a node with the address `LOCAL`, the machine that gpuprov runs on: no node gets a rule for it.

    Raises:
        Refused: a node is known by name only.
    """
    named = []
    addresses = []
    for name, address in hosts:
        if address == LOCAL:  # reaches itself by "lo"
            continue
        try:
            addresses.append(str(ipaddress.ip_network(address)))
        except ValueError:
            named.append(name)
    if named:
        raise Refused(
            f"settings.firewall: the address of {', '.join(named[:3])}{' …' * (len(named) > 3)} is not known",
            expected="hosts as a mapping of name to address, or networks in settings.firewall.fleet",
        )
    return tuple(addresses)
