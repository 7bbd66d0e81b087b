"""Topology of a node's GPUs, NICs and CPUs, parsed from `nvidia-smi topo -m`."""

from __future__ import annotations

from gpuprov.topology.matrix import Affinity, Link, MatrixNic, Topology, driver_error, parse_topology
from gpuprov.topology.verdict import judge_topology, nearest_nics

__all__ = [
    "Affinity",
    "Link",
    "MatrixNic",
    "Topology",
    "driver_error",
    "judge_topology",
    "nearest_nics",
    "parse_topology",
]
