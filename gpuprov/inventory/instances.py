"""Machine types of clouds as hardware that a fleet states."""

from __future__ import annotations

import difflib

from gpuprov.catalog import Catalog
from gpuprov.catalog.gpu_names import instance_named
from gpuprov.catalog.records import InstanceType
from gpuprov.errors import InvalidInput
from gpuprov.model.hardware import GpuHardware, HardwareProfile, NicHardware, NvmeHardware


def find_instance(catalog: Catalog, name: str) -> InstanceType:
    """The machine type of that id, with its cloud or without (`aws:p5.48xlarge`), in any case.

    Raises:
        InvalidInput: the catalog knows no such type; names what is near.
    """
    if found := instance_named(catalog, name):
        return found
    known = {instance.lower(): instance for instance in catalog.instances}
    near = [known[each] for each in difflib.get_close_matches(name.lower(), known, n=5, cutoff=0.4)]
    raise InvalidInput(
        f"machine type {name!r} is not in the catalog",
        expected="one of " + ", ".join(near) if near else "CLOUD:TYPE, such as aws:p5.48xlarge",
        do="`gpuprov catalog instances` lists them",
    )


def instance_hardware(instance: InstanceType, profile: HardwareProfile) -> HardwareProfile:
    """The hardware of a machine type, to be laid over that of its profile.

    What the catalog does not know of it is stated as None: what a profile says of a whole server does not
    hold for a part of one.
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
