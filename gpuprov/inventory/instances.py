"""Machine types of clouds, and their hardware as a fleet states it."""

from __future__ import annotations

import difflib

from gpuprov.catalog import Catalog
from gpuprov.catalog.gpu_names import instance_named
from gpuprov.catalog.records import InstanceType
from gpuprov.errors import InvalidInput
from gpuprov.model.hardware import GpuHardware, HardwareProfile, NicHardware, NvmeHardware
from gpuprov.untrusted import shown


def find_instance(catalog: Catalog, name: str) -> InstanceType:
    """Return the machine type with an id, with or without its cloud (`aws:p5.48xlarge`), in any case.

    Raises:
        InvalidInput: the catalog has no such type; the message names similar ones.
    """
    if found := instance_named(catalog, name):
        return found
    known = {instance.lower(): instance for instance in catalog.instances}
    near = [known[each] for each in difflib.get_close_matches(name[:80].lower(), known, n=5, cutoff=0.4)]
    raise InvalidInput(
        f"machine type {shown(name)} is not in the catalog",
        expected="one of " + ", ".join(near) if near else "CLOUD:TYPE, such as aws:p5.48xlarge",
        do="`gpuprov catalog instances` lists them",
    )


def instance_hardware(instance: InstanceType, profile: HardwareProfile) -> HardwareProfile:
    """Return the hardware of a machine type, as overrides of its profile.

    Values that the catalog does not have become None: a profile's values for a whole server do not hold for
    a part of one. The profile's NVLink is kept only if the type has all of its GPUs.
    """
    whole = instance.gpus == profile.gpu.count
    nvlink = profile.gpu.nvlink if whole else None
    return HardwareProfile(
        gpu=GpuHardware(count=instance.gpus, nvlink=nvlink, nvswitches=None),
        cpu_cores=instance.vcpus // instance.threads_per_core if instance.vcpus else None,
        memory_gib=instance.memory_gib,
        nvme=NvmeHardware(count=None, total_tb=None),
        nics=[
            NicHardware.model_validate(
                {"kind": ports.kind, "speed_gbits": ports.speed_gbits, "count": ports.count}
            )
            for ports in instance.nics
        ],
    )
