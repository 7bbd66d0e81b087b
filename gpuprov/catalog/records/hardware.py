"""GPUs, drivers, and what went wrong with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpuprov.catalog.version import Version

Flavour = Literal["open", "proprietary"]
BranchType = Literal["LTSB", "PB", "NFB", "evaluation"]
SegmentName = Literal["data-center", "workstation", "geforce", "laptop", "embedded", "mining", "unknown"]
Sources = tuple[str, ...]
Doubts = tuple[str, ...]
"""Ids of what sources say against a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a fact was read: title, address if there is one, age of the copy."""

    title: str
    dated: str
    url: str | None = None

    def __str__(self) -> str:
        return f"{self.title} ({self.dated})" + (f" {self.url}" if self.url else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """What a source says against a record, or what no source says of it.

    It concerns stacks with a driver or a CUDA release below those named, or from there on; all where none is.
    """

    id: str
    text: str
    below_driver: Version | None = None
    below_cuda: Version | None = None
    from_cuda: Version | None = None
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What holds for all boards that are sold for one purpose; a GPU's own record may say otherwise."""

    segment: SegmentName
    forward_compat: Literal["yes", "selected", "no"]
    ecc: bool | None = None
    mig: bool | None = None
    application_clocks: str
    source: Sources
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GpuModel:
    """One GPU model. Compares by identity: the catalog holds each once.

    What a record leaves out is that of its architecture and of its segment.
    """

    id: str
    nvidia_smi_name: str
    aliases: tuple[str, ...] = ()
    pci_vendor: str = "10DE"
    pci_device_ids: tuple[str, ...]
    pci_subsystem_example: str | None = None
    subsystems: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Device id → the boards that bear this name, where the device has other names too."""
    pci_ids_name: str | None = None
    architecture: str
    compute_capability: Version
    memory_gb: int | None = None
    form_factor: str = ""
    segment: SegmentName
    superchip: bool = False
    nvlink: str | None = None
    fabric_manager: Literal["no", "if_nvswitch", "nvlink5"] = "no"
    switched_board_gpus: int | None = None
    switchless_boards: bool = False
    multi_node_nvlink: bool = False
    mig: bool | None = None
    """None: some boards of the architecture have it, and no source was read for this one."""
    ecc: bool | None = None
    forward_compat: Literal["yes", "selected", "no"]
    mig_profile_largest: str | None = None
    mig_profile_smallest: str | None = None
    open_kernel_module: Literal["unsupported", "default_from_560", "required"]
    open_module_first_release_listing_device: Version | None = None
    min_driver_branch: int
    """Lowest branch whose device list has it: an upper bound of the true minimum."""
    listed_only: bool = False
    """Whether the lists are all that stands behind `min_driver_branch`: older branches are unproven then, not
    excluded."""
    first_listed: dict[str, Version] = field(default_factory=dict)
    """Device id → the oldest release read that lists it; a device that is missing is in no list."""
    since: dict[str, Version] = field(default_factory=dict)
    """Branch → its first release that lists the GPU, where older ones of that branch do not."""
    unseen_branches: tuple[int, ...] = ()
    """Newer branches that ended before they learned of it."""
    min_driver: Version | None = None
    advised_driver: Version | None = None
    max_driver_branch: int | None = None
    first_cuda: Version | None = None
    last_cuda: Version | None = None
    lgc_supported: bool
    lmc_runtime: Literal["yes", "no", "deferred"]
    application_clocks: str
    clocks_mhz: dict[str, int] = field(default_factory=dict)
    application_clocks_max_aws: dict[str, int] = field(default_factory=dict)
    guessed: bool = False
    """Whether no source names the device: its architecture is that of the ids around its own."""
    source: Sources
    unsourced_fields: tuple[str, ...] = ()
    doubts: Doubts = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One driver branch."""

    branch: int
    type: BranchType | None = None
    first_release_linux: str
    eol: str | None = None
    native_cuda: Version
    max_cuda_major_without_forward_compat: int
    known_versions: tuple[Version, ...]
    latest_known: Version
    min_architecture: str
    proprietary_modules: bool
    open_modules: Literal["none", "available", "default", "only"]
    open_modules_geforce_workstation: Literal["none", "alpha", "beta", "supported"]
    archives_only: bool = False
    """Whether distributions' archives alone have it."""
    source: Sources
    doubts: Doubts = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSeries:
    """What a driver does on one kernel series: builds up to one release, fails from another."""

    series: Version
    builds_to: Version | None = None
    fails_from: Version | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownIssue:
    """A failure that somebody met: a build against a kernel, a firmware floor."""

    id: str
    kind: Literal["build", "firmware"]
    drivers: tuple[Version, ...] = ()
    branches: tuple[int, ...] = ()
    module: Flavour | None = None
    os: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    kernels: tuple[KernelSeries, ...] = ()
    condition: str
    effect: str
    remedy: str
    check: str = ""
    note: str = ""
    source: Sources
