"""Nodes in the formats of schedulers and launchers: Slurm, MPI hostfiles, Kubernetes, dstack, SkyPilot."""

from __future__ import annotations

from gpuprov.inventory.exports.files import Access, dstack, hostfile, kubernetes_labels, skypilot
from gpuprov.inventory.exports.node import Node
from gpuprov.inventory.exports.slurm import gres_conf, slurm_conf, slurm_cores

__all__ = [
    "Access",
    "Node",
    "dstack",
    "gres_conf",
    "hostfile",
    "kubernetes_labels",
    "skypilot",
    "slurm_conf",
    "slurm_cores",
]
