"""Nodes in the formats of others: Slurm, MPI hostfiles, Kubernetes, Prometheus, dstack, SkyPilot, Ray."""

from __future__ import annotations

from gpuprov.inventory.exports.files import Access, dstack, hostfile, ray, skypilot
from gpuprov.inventory.exports.kubernetes import Choices, kubernetes_files, node_labels
from gpuprov.inventory.exports.node import Node, Slice
from gpuprov.inventory.exports.prometheus import prometheus_files, targets
from gpuprov.inventory.exports.slurm import core_indexes, gres_conf, shortcoming, slurm_conf, slurm_cores
from gpuprov.inventory.exports.slurm_site import slurm_files, topology_conf

__all__ = [
    "Access",
    "Choices",
    "Node",
    "Slice",
    "core_indexes",
    "dstack",
    "gres_conf",
    "hostfile",
    "kubernetes_files",
    "node_labels",
    "prometheus_files",
    "ray",
    "shortcoming",
    "skypilot",
    "slurm_conf",
    "slurm_cores",
    "slurm_files",
    "targets",
    "topology_conf",
]
