"""Selection of RDMA ports for NCCL: active, fastest, one link layer, near the GPUs if distances are known."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gpuprov.nccl.networks import NetworkInterface, natural, reason_against

_ROCE_V2 = "RoCE v2"
# Azure's accelerated networking has an RDMA device that carries no RDMA traffic.
_NO_RDMA_BEHIND = ("mlx5_an",)
_AWS_EFA = ("efa", "rdmap")


@dataclass(frozen=True)
class Gid:
    """An entry of a port's GID table: index, type (`IB/RoCE v1`, `RoCE v2`) and address in IPv6 form."""

    index: int
    type: str
    address: str


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA device.

    Attributes:
        state: `ACTIVE`, `DOWN`, `INIT`, …
        link_layer: `InfiniBand`, `Ethernet` (RoCE) or `Unspecified` (EFA).
        rate: Gbit/s.
        interfaces: network interfaces of the same device.
        gpu_distance: 0 (NVLink) to 6 (other socket) to the nearest GPU, as in `gpuprov.topology`;
            None if unknown.
    """

    name: str
    port: int = 1
    state: str = "ACTIVE"
    link_layer: str = "InfiniBand"
    rate: float = 0.0
    interfaces: tuple[str, ...] = ()
    gids: tuple[Gid, ...] = ()
    gpu_distance: int | None = None

    def __str__(self) -> str:
        return f"{self.name}:{self.port}"

    @property
    def is_efa(self) -> bool:
        """Return whether it is an AWS EFA, which NCCL uses through libfabric, not as InfiniBand."""
        return self.link_layer not in ("InfiniBand", "Ethernet") and self.name.startswith(_AWS_EFA)


@dataclass(frozen=True)
class Rails:
    """The chosen ports, the reason, and why each other was excluded; empty `hcas` means that RDMA is off."""

    hcas: tuple[RdmaPort, ...]
    reason: str
    excluded: dict[str, str]

    @property
    def roce(self) -> bool:
        """Return whether the rails are Ethernet, by the first adapter's link layer; False without rails."""
        return bool(self.hcas) and self.hcas[0].link_layer == "Ethernet"


_THROUGH_CPU = 4


def choose_rails(hcas: Iterable[RdmaPort], nics: Mapping[str, NetworkInterface]) -> Rails:
    """Choose the RDMA ports for NCCL: usable, of one link layer, the fastest, near GPUs.

    Args:
        nics: interface's name → interface, of the same node.
    """
    excluded: dict[str, str] = {}
    left: list[RdmaPort] = []
    for hca in sorted(hcas, key=lambda hca: natural(str(hca))):
        against = _reason_against(hca, nics)
        if against:
            excluded[str(hca)] = against
        else:
            left.append(hca)
    if not left:
        return Rails((), _nothing_left(excluded), excluded)
    for narrow in (_one_link_layer, _fastest, _near_gpus):
        left = narrow(left, excluded)
    kind = "RoCE" if left[0].link_layer == "Ethernet" else "InfiniBand"
    amount = f"{len(left)} {kind} rails" if len(left) > 1 else f"one {kind} port"
    return Rails(tuple(left), f"{amount} of {left[0].rate:g} Gb/s, active", excluded)


def _nothing_left(excluded: Mapping[str, str]) -> str:
    """Return why no RDMA port can be used, as text."""
    if not excluded:
        return "the node has no RDMA device"
    return "no RDMA port can be used: " + ", ".join(f"{name} {why}" for name, why in excluded.items())


def _reason_against(hca: RdmaPort, nics: Mapping[str, NetworkInterface]) -> str | None:
    """Return why a port cannot be used: by its kind, state, link layer, and for RoCE its interface; None if
    it can.
    """
    if hca.is_efa:
        return "is an EFA: NCCL reaches it through the aws-ofi-nccl plugin"
    if hca.name.startswith(_NO_RDMA_BEHIND):
        return "belongs to Azure's accelerated networking, without RDMA"
    if hca.state.upper() != "ACTIVE":
        return f"is {hca.state.upper() or 'in an unknown state'}"
    if hca.link_layer not in ("InfiniBand", "Ethernet"):
        return f"has link layer {hca.link_layer or 'unknown'}"
    if hca.link_layer == "Ethernet":
        return _reason_against_roce(hca, nics)
    return None


def _reason_against_roce(hca: RdmaPort, nics: Mapping[str, NetworkInterface]) -> str | None:
    """Return why a RoCE port cannot be used, or None: one of its interfaces, or the bond of that, must be
    usable for IP; a port without known interfaces is usable.
    """
    mine = [nics[name] for name in hca.interfaces if name in nics]
    found = ((nics.get(nic.master) or nic) if nic.master else nic for nic in mine)
    carriers = {nic.name: nic for nic in found}
    reasons = {reason_against(nic) for nic in carriers.values()}
    if not carriers or None in reasons:
        return None
    names = ", ".join(sorted(carriers))
    return f"stands on {names}: {', '.join(sorted(reason for reason in reasons if reason))}"


def _one_link_layer(left: list[RdmaPort], excluded: dict[str, str]) -> list[RdmaPort]:
    """Keep the link layer with more bandwidth, InfiniBand if equal: NCCL cannot mix InfiniBand and RoCE."""
    total = {
        layer: sum(h.rate for h in left if h.link_layer == layer) for layer in ("InfiniBand", "Ethernet")
    }
    best = max(total, key=lambda layer: total[layer])
    if not any(hca.link_layer == best for hca in left):
        best = left[0].link_layer
    return _keep(left, excluded, lambda hca: hca.link_layer == best, f"is not {best}, as the rails are")


def _fastest(left: list[RdmaPort], excluded: dict[str, str]) -> list[RdmaPort]:
    """Keep the ports with the highest rate."""
    top = max(hca.rate for hca in left)
    return _keep(left, excluded, lambda hca: hca.rate == top, f"is slower than the rails' {top:g} Gb/s")


def _near_gpus(left: list[RdmaPort], excluded: dict[str, str]) -> list[RdmaPort]:
    """Keep ports that share a PCIe switch with GPUs, if there are any; the others are for storage and
    services.
    """
    if not any(_is_near(hca) for hca in left):
        return left
    return _keep(left, excluded, _is_near, "has no GPU near it, others have: left to storage and services")


def _is_near(hca: RdmaPort) -> bool:
    """Return whether a port shares PCIe bridges with a GPU, below the CPU; False for an unknown distance."""
    return hca.gpu_distance is not None and hca.gpu_distance < _THROUGH_CPU


def _keep(
    left: list[RdmaPort], excluded: dict[str, str], fits: Callable[[RdmaPort], bool], reason: str
) -> list[RdmaPort]:
    """Return the ports that fit, and add the others to `excluded` with the reason."""
    excluded |= {str(hca): reason for hca in left if not fits(hca)}
    return [hca for hca in left if fits(hca)]


def gid_index(hcas: Iterable[RdmaPort]) -> tuple[int | None, str]:
    """Return the GID index of RoCE v2 that is the same on all ports, IPv4 and low ones first, or None; and
    the reason.
    """
    tables = [{gid.index: gid for gid in hca.gids if _usable(gid)} for hca in hcas]
    if not all(tables):
        return None, "the GID tables are not known; NCCL 2.21 and later finds the index itself"
    common = set.intersection(*(set(table) for table in tables))
    if not common:
        return None, "the ports' RoCE v2 GIDs have different indexes; NCCL 2.21 and later finds each itself"
    best = min(common, key=lambda index: (_family(tables[0][index]) != 4, index))
    family = f"IPv{_family(tables[0][best])}"
    return best, f"RoCE v2 with the port's {family} address, the same index on {len(tables)} ports"


def _usable(gid: Gid) -> bool:
    """Return whether a GID is of RoCE v2 and neither link-local nor zero."""
    address = ipaddress.IPv6Address(gid.address)
    return gid.type == _ROCE_V2 and not address.is_link_local and int(address) != 0


def _family(gid: Gid) -> int:
    """Return 4 for an IPv4 address in IPv6 form, else 6."""
    return 4 if ipaddress.IPv6Address(gid.address).ipv4_mapped else 6
