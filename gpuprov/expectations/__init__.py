"""The lock's statements, one by one: what a node of a group is expected to be.

Each has an id that drift and verify share, the value, the role that mends it, and whether it takes a
reboot to come true. One module an area; `AREAS` is the order in which they are brought about.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuprov.expectations.access import FIREWALL_UNIT, access
from gpuprov.expectations.containers import CDI_UNIT, DOCKER_UNIT, containers
from gpuprov.expectations.driver import FOREIGN_MODULES, driver
from gpuprov.expectations.gpus import CLOCKS_UNIT, MODES_UNIT, PERSISTENCE_UNIT, gpu_settings, hardware
from gpuprov.expectations.pins import pins
from gpuprov.expectations.server import server
from gpuprov.expectations.statement import Expectation, Severity
from gpuprov.expectations.system import system
from gpuprov.expectations.tuning import tuning
from gpuprov.lock import LockedGroup

__all__ = [
    "CDI_UNIT",
    "CLOCKS_UNIT",
    "DOCKER_UNIT",
    "FIREWALL_UNIT",
    "FOREIGN_MODULES",
    "MODES_UNIT",
    "PERSISTENCE_UNIT",
    "Expectation",
    "Severity",
    "expectations",
]

AREAS: tuple[Callable[[LockedGroup], list[Expectation]], ...] = (
    system,
    driver,
    hardware,
    server,
    gpu_settings,
    containers,
    tuning,
    pins,
    access,
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Everything that the lock says of one node of a group, in the order in which it is brought about."""
    return [expectation for area in AREAS for expectation in area(group)]
