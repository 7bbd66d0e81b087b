"""Records of clouds' machine types."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprov.catalog.records.hardware import Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Network ports of one kind, with the fields of a profile's `nics`."""

    kind: str
    speed_gbits: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """One machine type: the profile of its kind, and its differences from that.

    `vcpus` are the guest's processors, `memory_gib` the memory sold by the cloud; None if no source was read.
    """

    id: str
    """The cloud and its name for the type: `aws:p5.48xlarge`."""
    profile: str
    gpu: str
    """The model, as the profile names it."""
    gpus: int
    vcpus: int | None = None
    threads_per_core: int = 2
    memory_gib: int | None = None
    nics: tuple[Ports, ...] = ()
    arch: str = "x86_64"
    note: str = ""
    source: Sources
