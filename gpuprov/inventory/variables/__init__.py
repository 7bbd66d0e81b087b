"""A locked group as Ansible variables: the whole of what the roles are told. One module an area."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuprov.inventory.variables.access import access
from gpuprov.inventory.variables.connection import connection
from gpuprov.inventory.variables.containers import containers
from gpuprov.inventory.variables.driver import driver
from gpuprov.inventory.variables.gpus import gpu_settings
from gpuprov.inventory.variables.libraries import libraries
from gpuprov.inventory.variables.observing import observing
from gpuprov.inventory.variables.pins import pins
from gpuprov.inventory.variables.repositories import repositories
from gpuprov.inventory.variables.storage import storage
from gpuprov.inventory.variables.system import preflight
from gpuprov.inventory.variables.tuning import tuning
from gpuprov.model.lock import LockedGroup

__all__ = ["group_variables"]

AREAS: tuple[Callable[[LockedGroup], dict[str, Any]], ...] = (
    preflight,
    repositories,
    driver,
    gpu_settings,
    libraries,
    containers,
    tuning,
    storage,
    observing,
    pins,
    access,
)


def group_variables(group: LockedGroup) -> dict[str, Any]:
    """Variables of every host of a group. Roles take nothing from anywhere else."""
    stated = connection(group.connection)
    for area in AREAS:
        stated |= area(group)
    return stated
