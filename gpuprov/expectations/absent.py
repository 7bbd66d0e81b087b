"""What shall not be there."""

from __future__ import annotations

from gpuprov.expectations.statement import Expectation
from gpuprov.model.lock import LockedGroup

ROLES = {
    "cuda": "cuda_toolkit",
    "cudnn": "cudnn",
    "nccl": "nccl",
    "docker": "docker",
    "containerd": "containerd",
    "container_toolkit": "container_toolkit",
    "dcgm": "monitoring",
    "node_exporter": "monitoring",
    "profiling_tools": "profiling_tools",
}
"""Component → the role that takes it away."""


def absent(group: LockedGroup) -> list[Expectation]:
    """Components that are stated to be absent; `subject` is an expression for the names of their packages."""
    patterns = group.components.absent
    return [
        Expectation(f"{name}.absent", [], role, subject=patterns[name])
        for name, role in ROLES.items()
        if name in patterns
    ]
