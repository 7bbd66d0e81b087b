"""Records of GPUs, drivers and their known failures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpuprov.catalog.version import Version

Flavour = Literal["open", "proprietary"]
BranchType = Literal["LTSB", "PB", "NFB", "evaluation"]
SegmentName = Literal["data-center", "workstation", "geforce", "laptop", "embedded", "mining", "unknown"]
Sources = tuple[str, ...]
Doubts = tuple[str, ...]
"""Ids of contradictions between sources and a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The source of a fact: title, address if it has one, and date of the copy."""

    title: str
    dated: str
    url: str | None = None

    def __str__(self) -> str:
        return f"{self.title} ({self.dated})" + (f" {self.url}" if self.url else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A contradiction between a source and a record, or a fact without a source.

    It concerns stacks with a driver or CUDA release below or from those named; all stacks if no release is
    named.
    """

    id: str
    text: str
    below_driver: Version | None = None
    below_cuda: Version | None = None
    from_cuda: Version | None = None
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Defaults for all boards of a market segment; a GPU's own record overrides them."""

    segment: SegmentName
    forward_compat: Literal["yes", "selected", "no"]
    ecc: bool | None = None
    mig: bool | None = None
    application_clocks: str
    source: Sources
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GpuModel:
    """One GPU model. Compares by identity: the catalog has one instance of each.

    Missing fields are inherited from its architecture and its segment.
    """

    id: str
    nvidia_smi_name: str
    aliases: tuple[str, ...] = ()
    pci_vendor: str = "10DE"
    pci_device_ids: tuple[str, ...]
    pci_subsystem_example: str | None = None
    subsystems: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Device id → the boards with this name, if the device has other names too."""
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
    confidential_from: int | None = None
    """First driver branch with confidential computing; None: no release notes name the board."""
    mig_profile_largest: str | None = None
    mig_profile_smallest: str | None = None
    open_kernel_module: Literal["unsupported", "default_from_560", "required"]
    open_module_first_release_listing_device: Version | None = None
    min_driver_branch: int
    """Lowest branch whose device list contains it: an upper bound of the true minimum."""
    listed_only: bool = False
    """Whether `min_driver_branch` comes only from device lists: older branches are then unproven, not
    excluded.
    """
    first_listed: dict[str, Version] = field(default_factory=dict)
    """Device id → the oldest release read that lists it; a device that is missing is in no list."""
    not_listed: dict[str, Version] = field(default_factory=dict)
    """Device id → the newest release of the same branch before `first_listed` whose list was read and lacks
    it; older releases that were not read may list a device that is missing here.
    """
    since: dict[str, Version] = field(default_factory=dict)
    """Branch → its first release that lists the GPU, if older releases of that branch do not."""
    unseen_branches: tuple[int, ...] = ()
    """Newer branches that ended before they listed the GPU."""
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
    """Whether no source lists the device; its architecture is that of neighbouring ids."""
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
    """Whether only distributions' archives have the branch."""
    source: Sources
    doubts: Doubts = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverDates:
    """Days on which releases of a branch were published, in ISO format."""

    branch: int
    released: dict[Version, str]
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleDates:
    """Days at which releases of another module that is compiled on the node were published at the latest."""

    component: Literal["gds", "doca_ofed"]
    released: dict[Version, str]
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDate:
    """The day, in ISO format, before which no kernel from a version on was published."""

    first: Version
    """A series (6.8), or the upstream version with the number of RHEL's build (5.14.0.427)."""
    title: str
    released: str
    source: Sources
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSeries:
    """Build result of a driver on one kernel series: builds up to one release, fails from another."""

    series: Version
    builds_to: Version | None = None
    fails_from: Version | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownIssue:
    """A known failure: a build against a kernel, a required firmware version, or a release that its vendor
    withdrew.
    """

    id: str
    kind: Literal["build", "firmware", "withdrawn"]
    drivers: tuple[Version, ...] = ()
    branches: tuple[int, ...] = ()
    nvidia_fs: tuple[Version, ...] = ()
    """Releases of nvidia-fs (GPUDirect Storage) that it concerns, in place of drivers."""
    module: Flavour | None = None
    os: tuple[str, ...] = ()
    arch: str | None = None
    """Processor of the hosts that it concerns; None: all."""
    architectures: tuple[str, ...] = ()
    kernels: tuple[KernelSeries, ...] = ()
    condition: str
    effect: str
    remedy: str
    check: str = ""
    note: str = ""
    source: Sources
