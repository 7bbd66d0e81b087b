"""Rules of the doctor, one file per subject, in the order of a manual diagnosis."""

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
    nccl,
    network,
    packages,
    peers,
    speed,
    stack,
    storage,
    use,
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
    use,
    speed,
    containers,
    packages,
    peers,
    network,
    nccl,
    host,
    storage,
    stack,
)
