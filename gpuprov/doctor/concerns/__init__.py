"""One file a concern, plain predicates, in the order in which a person would ask."""

from __future__ import annotations

from gpuprov.doctor.concerns import (
    access,
    bus,
    containers,
    cuda,
    driver,
    errors,
    fabric,
    host,
    memory,
    module,
    network,
    packages,
    peers,
    speed,
    stack,
    storage,
)

ORDER = (
    bus,
    module,
    driver,
    access,
    errors,
    memory,
    fabric,
    cuda,
    speed,
    containers,
    packages,
    peers,
    network,
    host,
    storage,
    stack,
)
