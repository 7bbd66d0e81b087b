"""Selection of a node's networks for NCCL: the interfaces that remain after all exclusions.

Every exclusion has its reason, so that an administrator can override it with the site's own value.
"""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

Address = ipaddress.IPv4Interface | ipaddress.IPv6Interface

_MADE_BY_SOFTWARE = re.compile(
    r"docker|veth|cni|flannel|cali|cilium|lxc|lxd|podman|virbr|vnet|vmnet|br-|kube|nodelocaldns|weave|ovs"
    r"|vxlan|geneve|gre|tun|tap|wg|tailscale|zt|dummy|ifb|sit|ip6tnl"
)
_MANAGEMENT = re.compile(r"mgmt|mgt|mngt|ipmi|bmc|idrac|oob|admin|usb")
_STORAGE = re.compile(r"stor|nfs|ceph|san\d|iscsi|nvmeof")
_MANAGEMENT_DRIVERS = {"cdc_ether", "rndis_host", "cdc_ncm"}
_CLOUD_DRIVERS = {"ena", "gve", "mana", "hv_netvsc", "virtio_net", "vmxnet3"}
_MUCH_SLOWER = 10
# Used only without any other interface: a hypervisor has its address on a bridge, a container on a veth.
_LAST_RESORT = {"bridge": "a bridge", "virtual": "virtual"}


@dataclass(frozen=True)
class NetworkInterface:
    """A network interface.

    Attributes:
        kind: `physical`, `bond`, `vlan`, `bridge` or `virtual`.
        speed: Mbit/s; None if the driver does not report it.
        addresses: with prefix length, `10.0.0.5/24`.
        master: the bond or bridge to which it belongs.
        parent: the interface of a VLAN.
        infiniband: IP over InfiniBand.
    """

    name: str
    kind: str = "physical"
    up: bool = True
    speed: int | None = None
    addresses: tuple[str, ...] = ()
    mtu: int | None = None
    driver: str | None = None
    master: str | None = None
    parent: str | None = None
    numa: int | None = None
    infiniband: bool = False
    default_route: bool = False

    @cached_property
    def routable(self) -> list[Address]:
        """Addresses that another node can reach: neither loopback nor link-local."""
        parsed = (ipaddress.ip_interface(address) for address in self.addresses)
        return [address for address in parsed if not (address.is_link_local or address.is_loopback)]

    @property
    def ipv6_only(self) -> bool:
        """Return whether there are routable addresses, and all are IPv6."""
        return bool(self.routable) and all(address.version == 6 for address in self.routable)

    @property
    def wire(self) -> str:
        """Return the interface that a VLAN shares with others; its own name for any other kind."""
        return self.parent or (self.name.partition(".")[0] if self.kind == "vlan" else self.name)


@dataclass(frozen=True)
class Choice:
    """The chosen interfaces (several are rails of equal speed), the reason, and
    why each other was excluded.
    """

    nics: tuple[NetworkInterface, ...]
    reason: str
    excluded: dict[str, str]
    doubts: tuple[str, ...] = ()


def choose(nics: Iterable[NetworkInterface]) -> Choice:
    """Choose the networks for NCCL's sockets: the fastest that reach other nodes, in clouds the one of the
    default route; none if no interface remains.
    """
    excluded: dict[str, str] = {}
    left: list[NetworkInterface] = []
    for nic in sorted(nics, key=_order):
        against = reason_against(nic)
        if against:
            excluded[nic.name] = against
        else:
            left.append(nic)
    if any(nic.kind not in _LAST_RESORT for nic in left):
        excluded |= {nic.name: _LAST_RESORT[nic.kind] for nic in left if nic.kind in _LAST_RESORT}
        left = [nic for nic in left if nic.kind not in _LAST_RESORT]
    if not left:
        return Choice((), "no interface reaches another node", excluded)
    if all(nic.driver in _CLOUD_DRIVERS or nic.speed is None for nic in left):
        return _by_route(left, excluded)
    return _by_speed(left, excluded)


def reason_against(nic: NetworkInterface) -> str | None:
    """Return why an interface can never carry traffic between nodes; None if it can."""
    return next((reason for holds, reason in _reasons(nic) if holds), None)


def _reasons(nic: NetworkInterface) -> Iterator[tuple[bool, str]]:
    """Yield each exclusion: whether it holds for the interface, and the reason."""
    name = nic.name.lower()
    yield nic.name == "lo", "loopback"
    yield _MADE_BY_SOFTWARE.match(name) is not None, "made by a container engine, a hypervisor or a VPN"
    yield nic.master is not None, f"part of {nic.master}"
    yield not nic.up, "down"
    management = _MANAGEMENT.search(name) is not None or nic.driver in _MANAGEMENT_DRIVERS
    yield management, "management by its name or driver"
    yield _STORAGE.search(name) is not None, "storage by its name"
    yield not nic.routable, "no address that another node can reach"


def _by_route(left: list[NetworkInterface], excluded: dict[str, str]) -> Choice:
    """Choose the interface of the default route; without a known one the first, with a doubt if there are
    others. Clouds and virtual machines report no meaningful speed.
    """
    routed = [nic for nic in left if nic.default_route] or left[:1]
    taken = {nic.name for nic in routed}
    rest = {nic.name: "not on the default route" for nic in left if nic.name not in taken}
    known = any(nic.default_route for nic in left)
    doubt = (
        () if known or not rest else (f"{routed[0].name} was taken by its name: no default route is known",)
    )
    driver = f" ({routed[0].driver})" if routed[0].driver else ""
    reason = f"carries the default route{driver}" if known else f"the first with an address{driver}"
    return Choice(tuple(routed[:1]), reason, excluded | rest, doubt)


def _by_speed(left: list[NetworkInterface], excluded: dict[str, str]) -> Choice:
    """Choose the interfaces of the highest speed, one for each wire; exclude the slower ones.

    Args:
        left: those that can be used; at least one.
        excluded: interface → why it was excluded before.
    """
    top = max(nic.speed or 0 for nic in left)
    fastest = [nic for nic in left if nic.speed == top]
    slower = {nic.name: _slower(nic, top) for nic in left if nic.speed != top}
    rails, shared, doubts = _one_a_wire(fastest)
    count = f"{len(rails)} rails of " if len(rails) > 1 else "the fastest network with an address, "
    kind = {"bond": " (bond)", "vlan": " (VLAN)"}.get(
        rails[0].kind, " (IPoIB)" if rails[0].infiniband else ""
    )
    return Choice(tuple(rails), f"{count}{_gigabits(top)}{kind}", excluded | slower | shared, tuple(doubts))


def _slower(nic: NetworkInterface, top: int) -> str:
    """Return why an interface that is not among the fastest is excluded: its speed is unknown, or it is for
    management (`_MUCH_SLOWER`) or for storage.

    Args:
        top: speed of the fastest, in Mbit/s.
    """
    if nic.speed is None:
        return "its speed is not known"
    kind = "management" if nic.speed * _MUCH_SLOWER <= top else "left to storage and services"
    return f"{kind}: {_gigabits(nic.speed)} beside {_gigabits(top)}"


def _one_a_wire(nics: list[NetworkInterface]) -> tuple[list[NetworkInterface], dict[str, str], list[str]]:
    """Choose one of several networks on one wire (VLANs): the largest MTU; return the chosen ones, why the
    others are excluded, and the doubts.
    """
    wires: dict[str, list[NetworkInterface]] = defaultdict(list)
    for nic in nics:
        wires[nic.wire].append(nic)
    rails: list[NetworkInterface] = []
    shared: dict[str, str] = {}
    doubts: list[str] = []
    for wire, sharing in wires.items():
        best = max(sharing, key=lambda nic: (nic.mtu or 0, nic.kind == "vlan"))
        rails.append(best)
        shared |= {nic.name: f"shares {wire} with {best.name}" for nic in sharing if nic is not best}
        if len(sharing) > 1:
            names = ", ".join(nic.name for nic in sharing)
            doubts.append(f"{names} are networks on one wire, {best.name} was taken: say which is meant")
    return rails, shared, doubts


def _gigabits(speed: int) -> str:
    """Return a speed in Mbit/s as text: `100 Gb/s`."""
    return f"{speed / 1000:g} Gb/s"


def _order(nic: NetworkInterface) -> list[tuple[int, str]]:
    """Return a sort key: eth2 before eth10."""
    return natural(nic.name)


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that compares numbers by value: `mlx5_2` before `mlx5_10`."""
    parts = filter(None, re.split(r"(\d+)", name))
    return [(int(part), "") if re.fullmatch(r"\d{1,18}", part) else (-1, part) for part in parts]
