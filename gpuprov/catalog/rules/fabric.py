"""Rules of NVSwitch and NVLink: fabric manager, NSCQ, NVSDM, IMEX.

Sources: Fabric Manager for NVIDIA NVSwitch Systems User Guide; NVIDIA gpu-driver-container (detection of
switches, package names); catalog of GPUs and their boards.
"""

from __future__ import annotations

from typing import Literal

from gpuprov.catalog.records import GpuModel
from gpuprov.catalog.version import Version

Need = Literal["required", "likely", "possible", "never"]
"""Whether a host has NVSwitches, judged without its PCI bus."""

_RANK: dict[Need, int] = {"required": 3, "likely": 2, "possible": 1, "never": 0}
SWITCHED_GROUP = 8
"""GPUs of an NVSwitch board (HGX-2 has two such boards). Fewer visible GPUs are a board without switches, or
a guest whose host runs the fabric manager.
"""


def gpu_need(gpu: GpuModel, count: int | None) -> Need:
    """Return whether `count` GPUs of a model (None: a machine of that model, number not stated) imply
    NVSwitches.

    Fewer than `SWITCHED_GROUP` make them `possible`; without a number, a model that also has boards without
    switches makes them `likely`. Superchips have their switches in the rack, not on the host: GB200, GB300
    and VR200 run no fabric manager, GH200 only with an NVLink switch; they are `possible`.
    """
    if gpu.fabric_manager == "no":
        return "never"
    if gpu.superchip or (count is not None and count < SWITCHED_GROUP):
        return "possible"
    return "likely" if count is None and gpu.switchless_boards else "required"


def host_need(counts: dict[GpuModel, int | None]) -> Need:
    """Return the strongest need among the host's GPUs; `never` without GPUs."""
    return max(
        (gpu_need(gpu, count) for gpu, count in counts.items()), key=_RANK.__getitem__, default="never"
    )


def matches_driver(component: Version, driver: Version) -> bool:
    """Return whether fabric manager, NSCQ, NVSDM or IMEX have the driver's version; a bare branch matches any
    of it.
    """
    return component == driver or (len(component.parts) == 1 and driver.within(component))


def needs_nvlsm(gpus: tuple[GpuModel, ...]) -> bool:
    """Return whether the host's switches are NVLink 5, which superchips have none of: the fabric manager then
    needs nvlsm, and telemetry NVSDM.
    """
    return any(gpu.fabric_manager == "nvlink5" and not gpu.superchip for gpu in gpus)


def needs_imex(gpus: tuple[GpuModel, ...]) -> bool:
    """Return whether the host is part of a multi-node NVLink domain (GB200, GB300, VR200)."""
    return any(gpu.multi_node_nvlink for gpu in gpus)
