"""GPUs, drivers, and what went wrong with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpuprov.catalog.version import Version

Flavour = Literal["open", "proprietary"]
BranchType = Literal["LTSB", "PB", "NFB", "evaluation"]
Sources = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a fact was read: title, address if there is one, age of the copy."""

    title: str
    dated: str
    url: str | None = None

    def __str__(self) -> str:
        return f"{self.title} ({self.dated})" + (f" {self.url}" if self.url else "")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gpu:
    """One GPU model. Compares by identity: the catalog holds each once."""

    id: str
    nvidia_smi_name: str
    aliases: tuple[str, ...] = ()
    pci_vendor: str
    pci_device_ids: tuple[str, ...]
    pci_subsystem_example: str | None = None
    pci_ids_name: str | None = None
    architecture: str
    compute_capability: Version
    memory_gb: int
    form_factor: str
    segment: Literal["data-center", "workstation", "geforce"]
    superchip: bool
    nvlink: str | None = None
    fabric_manager: Literal["no", "if_nvswitch", "nvlink5"]
    switched_board_gpus: int | None = None
    switchless_boards: bool = False
    multi_node_nvlink: bool = False
    mig: bool
    mig_profile_largest: str | None = None
    mig_profile_smallest: str | None = None
    open_kernel_module: Literal["unsupported", "default_from_560", "required"]
    open_module_first_release_listing_device: Version | None = None
    min_driver_branch: int
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
    source: Sources
    unsourced_fields: tuple[str, ...] = ()
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
    source: Sources
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
