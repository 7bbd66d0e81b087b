"""The lock's statements, one by one: what a node of a group is expected to be.

Each has an id that drift and verify share, the value, the role that mends it, and whether it takes a
reboot to come true. One module an area; `AREAS` is the order in which they are brought about.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuprov.expectations.absent import absent
from gpuprov.expectations.access import FIREWALL_UNIT, access
from gpuprov.expectations.containers import CDI_UNIT, CONTAINERD_UNIT, DOCKER_UNIT, containers
from gpuprov.expectations.driver import FOREIGN_MODULES, driver
from gpuprov.expectations.gpus import CLOCKS_UNIT, MODES_UNIT, PERSISTENCE_UNIT, gpu_settings, hardware
from gpuprov.expectations.libraries import CUDA_LINK, FABRIC_UNIT, fabric, libraries
from gpuprov.expectations.observing import monitoring, profiling
from gpuprov.expectations.pins import pins
from gpuprov.expectations.repositories import repositories
from gpuprov.expectations.server import server
from gpuprov.expectations.statement import Expectation, Severity
from gpuprov.expectations.storage import storage
from gpuprov.expectations.system import system
from gpuprov.expectations.tuning import tuning
from gpuprov.model.lock import LockedGroup

__all__ = [
    "CDI_UNIT",
    "CLOCKS_UNIT",
    "CONTAINERD_UNIT",
    "CUDA_LINK",
    "DOCKER_UNIT",
    "FABRIC_UNIT",
    "FIREWALL_UNIT",
    "FOREIGN_MODULES",
    "MODES_UNIT",
    "PERSISTENCE_UNIT",
    "Expectation",
    "Severity",
    "everything_else",
    "expectations",
]

AREAS: tuple[Callable[[LockedGroup], list[Expectation]], ...] = (
    system,
    repositories,
    driver,
    hardware,
    server,
    fabric,
    gpu_settings,
    libraries,
    containers,
    tuning,
    storage,
    profiling,
    absent,
    pins,
    access,
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Everything that the lock says of one node of a group, in the order in which it is brought about."""
    others = everything_else(group)
    return [*others, *monitoring(group, others)]


def everything_else(group: LockedGroup) -> list[Expectation]:
    """Everything but monitoring, which tells Prometheus of it."""
    return [expectation for area in AREAS for expectation in area(group)]
