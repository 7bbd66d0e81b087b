"""Input of the derivation, from a node's facts and topology."""

from __future__ import annotations

import re

from gpuprov.nccl.networks import NetworkInterface
from gpuprov.nccl.rdma import Gid, RdmaPort
from gpuprov.probe.facts import Facts
from gpuprov.topology import Topology
from gpuprov.topology.verdict import distance

# Interfaces without a carrier of their own (IP over InfiniBand on some drivers, tunnels) report `unknown`.
_UP = ("up", "unknown")


def from_facts(
    facts: Facts, topology: Topology | None = None
) -> tuple[list[NetworkInterface], list[RdmaPort]]:
    """Return the interfaces and RDMA ports of a node.

    Args:
        facts: the node's facts.
        topology: its `nvidia-smi topo -m`, for the distance of each RDMA device to a GPU.

    Raises:
        gpuprov.probe.facts.Missing: the facts lack interfaces or RDMA devices.
    """
    near = _distances(topology) if topology else {}
    nics = [
        NetworkInterface(
            name=nic.name,
            kind=nic.kind,
            up=nic.state in _UP,
            speed=nic.speed,
            addresses=nic.addresses,
            mtu=nic.mtu,
            driver=nic.driver,
            master=nic.master,
            numa=nic.numa_node,
            infiniband=nic.infiniband,
            default_route=nic.default_route,
            parent=nic.lower[0] if nic.kind == "vlan" and nic.lower else None,
        )
        for nic in facts.nics.values()
    ]
    hcas = [
        RdmaPort(
            name=hca.name,
            port=hca.port,
            state=hca.state,
            link_layer=hca.link_layer,
            rate=gigabits(hca.rate),
            interfaces=hca.interfaces,
            gids=tuple(Gid(*gid) for gid in hca.gids),
            gpu_distance=near.get(hca.name),
        )
        for hca in facts.hcas
    ]
    return nics, hcas


def gigabits(rate: str) -> float:
    """Parse the rate of a port in sysfs, such as `400 Gb/sec (4X NDR)`, in Gbit/s; 0 without a number."""
    found = re.match(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*Gb", rate)
    return float(found[1]) if found else 0.0


def _distances(topology: Topology) -> dict[str, int]:
    """Return RDMA device → its distance to the nearest GPU, as `gpuprov.topology.verdict.distance`."""
    return {
        nic.device: min(distance(topology.link(gpu, nic.name).kind) for gpu in topology.gpus)
        for nic in topology.nics
    }
