"""How a node's facts answer each expectation; one module an area."""

from __future__ import annotations

from gpuprov.drift.observations import (
    absent,
    access,
    containers,
    driver,
    gpus,
    hardware,
    libraries,
    observing,
    packages,
    pins,
    storage,
    system,
    tuning,
    units,
)
from gpuprov.drift.observations.registry import OBSERVERS

__all__ = [
    "OBSERVERS",
    "absent",
    "access",
    "containers",
    "driver",
    "gpus",
    "hardware",
    "libraries",
    "observing",
    "packages",
    "pins",
    "storage",
    "system",
    "tuning",
    "units",
]
