"""Records of CUDA, its libraries, frameworks and the container toolkit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpuprov.catalog.records.hardware import Doubts, Sources
from gpuprov.catalog.version import Version


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
    doubts: Doubts = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpublishedToolkit:
    """A CUDA version that a driver reports without a toolkit release."""

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
class EarlyDriver:
    """The lowest driver of a CUDA release before 11."""

    cuda: Version
    min_driver: Version
    bundled_driver: Version | None = None
    """The driver in the release's own runfile, if it is older."""
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardCompat:
    """One row of the forward-compatibility matrix: `cuda-compat-X-Y` and the branches that support it."""

    cuda: Version
    base_branches: tuple[int, ...]
    native_branches: tuple[int, ...]
    refused_branches: tuple[int, ...]
    former_bases: tuple[Version, ...] = ()
    """Oldest release of each branch that ended, on which the package was supported before."""
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Facts about one compute capability: CUDA, drivers and boards."""

    compute_capability: Version
    architecture: str
    first_cuda: Version | None = None
    last_cuda: Version | None = None
    first_driver_branch: int
    """Lowest branch whose device lists contain a GPU of it."""
    last_driver_branch: int | None = None
    open_kernel_module: Literal["unsupported", "default_from_560", "required"]
    mig: bool
    """Whether any board supports MIG."""
    lgc_supported: bool
    lmc_runtime: Literal["yes", "no", "deferred"]
    source: Sources
    doubts: Doubts = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimit:
    """The newest compiler and C library of a host with which nvcc of some CUDA releases compiles."""

    first: Version
    last: Version
    gcc: Version
    """Newest gcc; one with fewer digits includes all that it names."""
    glibc: Version | None = None
    """Newest glibc whose headers agree with the toolkit's; None: not known."""
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRange:
    """Releases of a library with builds for one CUDA major (bounds inclusive)."""

    cuda_major: int
    first: Version
    last: Version | None = None
    min_driver: Version | None = None
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class CapabilityFloor:
    """The compute capability required by releases after `after`."""

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
    builds_complete: bool = False
    """Whether no other build than those seen was published."""
    builds_absent: dict[str, tuple[Version, ...]] = field(default_factory=dict)
    """System → builds that its repository lacks, though they exist."""
    note: str = ""
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFloor:
    """The lowest compute capability with code in builds for a CUDA major, from a release on."""

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
    default: Version | None = None
    """CUDA of the default wheel; None: the wheels have their own rows."""
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFloor:
    """The lowest compute capability with code in the wheels of some releases of a framework."""

    framework: str
    first: Version
    last: Version | None = None
    """Last minor release; None: all later ones too."""
    cuda: Version | None = None
    """The builds for this CUDA; None: all builds."""
    min_compute_capability: Version
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuWheel:
    """The default wheels of a framework without CUDA for one architecture, up to a minor release."""

    framework: str
    arch: str
    last: Version
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxBuild:
    """Releases of JAX with a build for one CUDA major; of several, the first is that of the extra `cuda`."""

    cuda: Version
    """The oldest CUDA of the major with which it works."""
    first: Version
    last: Version | None = None
    cudnn: Version | None = None
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
class EngineNeed:
    """The version of Docker, containerd, Podman or the driver that a way to give GPUs to containers needs."""

    what: str
    from_toolkit: Version | None = None
    at_least: Version
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLimit:
    """A limitation of container toolkits before a release."""

    rule: str
    before: Version
    refused: bool
    os: tuple[str, ...] = ()
    engine: Literal["podman"] | None = None
    """The engine whose containers it concerns; None: all."""
    text: str
    source: Sources
