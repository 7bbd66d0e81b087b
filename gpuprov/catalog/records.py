"""The records of the catalog, one class per kind of fact. What a field means: `fields` in the data files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from gpuprov.catalog.version import Version

Flavour = Literal["open", "proprietary"]
Arch = Literal["x86_64", "aarch64"]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """One CUDA toolkit release."""

    version: Version
    label: str | None = None
    status: Literal["released", "preview", "seen_on_pypi_only", "partial_evidence"]
    driver_branch: int
    driver_corresponding_linux_x86_64: Version | None = None
    driver_bundled_linux_x86_64: Version | None = None
    released: str | None = None
    source: Sources
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpublishedToolkit:
    """A CUDA version that a driver reports and that no toolkit ever had."""

    version: Version
    driver_branch: int
    note: str
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class MinorCompat:
    """The driver floor of a CUDA major."""

    cuda_major: int
    min_driver_linux: Version
    driver_range_doc: str
    source: Sources
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardCompat:
    """One row of the forward-compatibility matrix: `cuda-compat-X-Y` and the branches it goes on."""

    cuda: Version
    base_branches: tuple[int, ...]
    native_branches: tuple[int, ...]
    refused_branches: tuple[int, ...]
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What CUDA and the drivers say of one compute capability."""

    compute_capability: Version
    architecture: str
    first_cuda: Version | None = None
    last_cuda: Version | None = None
    last_driver_branch: int | None = None
    source: Sources
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRange:
    """For which releases of a library builds exist for one CUDA major (bounds inclusive)."""

    cuda_major: int
    first: Version
    last: Version | None = None
    min_driver: Version | None = None
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class CapabilityFloor:
    """Releases after `after` need this compute capability."""

    after: Version
    min_compute_capability: Version
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Cudnn:
    """One cuDNN release."""

    version: Version
    wheel_cuda_majors: tuple[int, ...] = ()
    deb_builds_seen: tuple[Version, ...] = ()
    release_date: str | None = None
    min_compute_capability: Version | None = None
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Nccl:
    """One NCCL release."""

    version: Version
    tag_date: str | None = None
    wheel_cuda_majors: tuple[int, ...] = ()
    cuda_builds_seen: tuple[Version, ...] = ()
    note: str = ""
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFloor:
    """From a release on, builds for a CUDA major hold code for this compute capability and up."""

    cuda_major: int
    since: Version
    min_compute_capability: Version
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclFailure:
    """A build of NCCL that fails on driver branches."""

    version: Version
    build: Version
    branches: tuple[int, ...]
    effect: str
    remedy: str
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchWheel:
    """The default Linux wheel of one PyTorch release."""

    version: Version
    python: str
    cuda: Version | None = None
    cuda_runtime: str | None = None
    cudnn: Version | None = None
    nccl: Version | None = None
    min_driver_minor_compat: Version | None = None
    native_driver_branch: int | None = None
    min_compute_capability_from_toolkit: Version | None = None
    source: Sources
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuilds:
    """The CUDA builds of one PyTorch minor on the PyTorch index."""

    version: Version
    cuda_stable: tuple[Version, ...]
    cuda_experimental: tuple[Version, ...] = ()
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorflowTested:
    """One row of TensorFlow's table of tested builds."""

    version: Version
    cuda: Version
    cudnn: Version
    min_driver_minor_compat: Version | None = None
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorflowWheel:
    """The pins of one `tensorflow[and-cuda]` release."""

    version: Version
    python: str
    extra: str
    cuda_runtime: str
    cudnn: str
    nccl: str
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerToolkit:
    """One release of the NVIDIA container toolkit."""

    version: Version
    released: str | None = None
    nvidia_docker2: str | None = None
    note: str = ""
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerNeed:
    """What a way of giving GPUs to containers asks of Docker."""

    what: str
    from_toolkit: Version | None = None
    min_docker: Version
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLimit:
    """What container toolkits before a release lack."""

    rule: str
    before: Version
    refused: bool
    os: tuple[str, ...] = ()
    text: str
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveDriver:
    """A driver in a distribution's own archive: a version, or a branch of which it keeps the newest."""

    version: Version | None = None
    branch: int | None = None
    repository: str
    flavours: tuple[Flavour, ...]
    series: str | None = None
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveCuda:
    """A CUDA toolkit in a distribution's own archive."""

    version: Version
    repository: str
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One operating system release, and what repositories hold for it."""

    id: str
    family: str
    title: str
    folder: str
    """Its folder in NVIDIA's repository."""
    arch: tuple[Arch, ...]
    """What NVIDIA's repository serves."""
    manager: Literal["apt", "dnf", "zypper"]
    key_file: str | None = None
    cuda_first: Version | None = None
    cuda_absent_to: Version | None = None
    cuda_last: Version | None = None
    cuda_absent_from: Version | None = None
    driver_first: int | None = None
    driver_absent_to: int | None = None
    driver_last: int | None = None
    streams: bool = False
    archive_drivers: tuple[ArchiveDriver, ...] = ()
    archive_cuda: tuple[ArchiveCuda, ...] = ()
    docker: Version | None = None
    podman: Version | None = None
    toolkit_listed: bool = False
    driver_guides: tuple[str, ...] = ()
    source: Sources
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How people spell the systems of a family."""

    family: str
    names: tuple[str, ...]
    version: Literal["YY.MM", "major"]
    prefix: str | None = None
    bare: str | None = None
    codenames: dict[str, str] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A package repository, by its id."""

    id: str
    title: str
    url: str | None = None
    components: tuple[str, ...] = ()
    note: str = ""
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageRule:
    """Names of a component's packages under some conditions; the first rule that fits counts."""

    component: str
    repository: tuple[str, ...]
    manager: tuple[str, ...] = ()
    family: tuple[str, ...] = ()
    streams: bool | None = None
    series: bool = False
    branch_from: int | None = None
    branch_to: int | None = None
    flavour: Flavour | None = None
    arch: tuple[Arch, ...] = ()
    names: tuple[str, ...]
    unversioned: tuple[str, ...] = ()
    pin: tuple[str, ...] = ()
    stream: str | None = None
    version: str | None = None
    note: str = ""
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRule:
    """Which installed packages belong to a component: shell patterns of names, `!` excludes."""

    component: str
    manager: str
    patterns: tuple[str, ...]
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One step of a policy: branch types, and whether end of life counts against a branch."""

    types: tuple[BranchType | None, ...]
    supported: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """In which order driver branches are tried when none is stated."""

    name: str
    title: str
    tiers: tuple[Tier, ...]
    source: Sources


Fact = dict[str, Any]
"""A fact that is kept for people and other parts, and that no rule reads."""
