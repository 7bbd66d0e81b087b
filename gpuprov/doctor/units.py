"""Serial numbers of a machine and of its GPUs, and the GPUs that a fault is about."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import Fault
from gpuprov.errors import GpuprovError
from gpuprov.probe.parse.gpu import Gpu

_NAMED = re.compile(r"\bGPU ([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}|\d{1,3}(?!:[0-9a-f]{2}:))\b")
_SERIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{2,63}")
"""Characters of a serial number or a UUID; other texts identify nothing."""
GPUS = 64
"""Maximum number of a machine's GPUs: a node chooses how many nvidia-smi lists."""


def machine_serial(seen: Examination) -> str:
    """Return the serial number of a machine as its firmware states it; empty without one."""
    try:
        return seen.serial or ""
    except GpuprovError:
        return ""


def gpus_of(seen: Examination) -> tuple[Gpu, ...]:
    """Return the first `GPUS` GPUs that nvidia-smi lists; () if it does not answer."""
    try:
        return seen.smi.gpus[:GPUS]
    except GpuprovError:
        return ()


def gpu_serial(gpu: Gpu) -> str:
    """Return what identifies a GPU in every machine: its serial number, else its UUID, else nothing. One that
    has only zeros does not count.
    """
    found = (each for each in (gpu.serial, gpu.uuid) if each and each.strip("0") and _SERIAL.fullmatch(each))
    return next(found, "")


def concerned(fault: Fault, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that a fault names by index or address; [] if it names none of the machine's."""
    names = set(_NAMED.findall(fault.text))
    return [
        gpu for gpu in gpus if str(gpu.index) in names or (gpu.pci_address or "").rpartition(".")[0] in names
    ]
