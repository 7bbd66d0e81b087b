"""Check of a group's GPU settings against its GPU model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuprov.catalog.records import GpuModel
from gpuprov.errors import Refused
from gpuprov.model.lock import Setting

FORGOTTEN = ("clocks", "power_limit", "compute_mode")
"""Settings that a driver without persistence forgets as soon as no program uses the GPU."""


def check_gpu_settings(
    name: str, gpu: GpuModel, settings: Mapping[str, Setting], narrate: Callable[[str], None]
) -> None:
    """Check MIG, ECC and clock settings against the known features of the model.

    An ECC or clock setting that the model may not have is narrated; an unknown MIG feature is no objection.

    Args:
        name: the group, for messages.

    Raises:
        Refused: GPU instances are requested from a GPU without MIG, or settings that need persistence without
            it.
    """

    def stated(setting: str) -> bool:
        return setting in settings and settings[setting].value not in (None, False, (), [], "default")

    if stated("mig") and gpu.mig is False:
        raise Refused(
            f"{name}: {gpu.id} cannot be divided into GPU instances [gpu-mig]",
            do="remove mig from the settings",
        )
    forgotten = ", ".join(filter(stated, FORGOTTEN))
    if forgotten and "persistence" in settings and settings["persistence"].value is False:
        raise Refused(
            f"{name}: persistence is false, and the driver then forgets {forgotten} when no program uses"
            " the GPU",
            do=f"settings: {{persistence: true}}, or leave out {forgotten}",
        )
    if stated("ecc") and gpu.ecc is False:
        narrate(f"{name}: {gpu.id} ({gpu.segment}) has no ECC setting: nothing is set")
    elif stated("ecc") and gpu.ecc is None and gpu.segment in ("geforce", "laptop"):
        narrate(f"{name}: {gpu.id} ({gpu.segment}) may have no ECC: where it has none, nothing is set")
    if stated("clocks") and gpu.segment not in ("data-center", "workstation"):
        instead = "they are locked instead" if gpu.lgc_supported else "nothing sets them"
        narrate(f"{name}: {gpu.id} ({gpu.segment}) may have no application clocks: where not, {instead}")
