"""Records of operating systems, repositories, package names and policies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpuprov.catalog.records.hardware import BranchType, Doubts, Flavour, Sources
from gpuprov.catalog.version import Version

Arch = Literal["x86_64", "aarch64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveDriver:
    """A driver in a distribution's own archive: a version, or a branch with its newest version."""

    version: Version | None = None
    branch: int | None = None
    repository: str
    flavours: tuple[Flavour, ...]
    series: str | None = None
    by_name_only: bool = False
    """Whether only a request that names the driver selects it."""
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveCuda:
    """A CUDA toolkit in a distribution's own archive."""

    version: Version
    repository: str
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCompiler:
    """The compiler of a system's newer kernels, if it is not the system's own."""

    kernels_from: Version
    gcc: Version
    brought_by: str
    """The package that installs it for DKMS."""
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One operating system release, and the software in its repositories."""

    id: str
    family: str
    title: str
    folder: str
    """Its folder in NVIDIA's repository."""
    arch: tuple[Arch, ...]
    """Architectures in NVIDIA's repository."""
    manager: Literal["apt", "dnf", "zypper"]
    key_file: str | None = None
    cuda_first: Version | None = None
    cuda_absent_to: Version | None = None
    cuda_last: Version | None = None
    cuda_absent_from: Version | None = None
    driver_first: int | None = None
    driver_absent_to: int | None = None
    driver_last: int | None = None
    kernel: Version | None = None
    """Kernel with which the release came."""
    gcc: Version | None = None
    """Its own gcc."""
    glibc: Version | None = None
    python: Version | None = None
    """Its own Python."""
    kernel_compiler: KernelCompiler | None = None
    doca_first: Version | None = None
    """First DOCA-Host release that supports the system."""
    streams: bool = False
    archive_drivers: tuple[ArchiveDriver, ...] = ()
    archive_cuda: tuple[ArchiveCuda, ...] = ()
    archive_components: tuple[str, ...] = ()
    """Components of its archive, if they differ from those of its repository's record."""
    docker: Version | None = None
    podman: Version | None = None
    toolkit_listed: bool = False
    driver_guides: tuple[str, ...] = ()
    source: Sources
    doubts: Doubts = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Spellings of a family's systems."""

    family: str
    names: tuple[str, ...]
    version: Literal["YY.MM", "major"]
    prefix: str | None = None
    bare: str | None = None
    codenames: dict[str, str] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A package repository."""

    id: str
    title: str
    url: str | None = None
    url_aarch64: str | None = None
    """The URL for that architecture, if it differs."""
    components: tuple[str, ...] = ()
    note: str = ""
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageRule:
    """Names of a component's packages under some conditions; the first rule that matches counts."""

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
    precompiled: bool = False
    module: str | None = None
    pin: tuple[str, ...] = ()
    stream: str | None = None
    version: str | None = None
    note: str = ""
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageClient:
    """The package that mounts a kind of network file system."""

    client: str
    family: tuple[str, ...]
    package: str
    packages: dict[str, str] = field(default_factory=dict)
    """Family → name of the package, if it differs there."""
    note: str = ""
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRule:
    """Packages of a component: shell patterns of names, `!` excludes.

    `shared` packages are held with it and serve others too: they are kept when the component must be absent.
    """

    component: str
    manager: str
    patterns: tuple[str, ...]
    shared: tuple[str, ...] = ()
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One step of a policy: branch types, and whether branches past end of life are excluded."""

    types: tuple[BranchType | None, ...]
    supported: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The order in which driver branches are tried if the request states no driver."""

    name: str
    title: str
    tiers: tuple[Tier, ...]
    source: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A package that the driver needs from a repository that the system does not enable at first."""

    package: str
    repository: str
    needs: str
    """The repository that this one depends on, with `{release}` and `{arch}` of the system."""
    enable: str
    """Commands that enable both on a system without a subscription."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """How a system works, and the adapters that serve it; None or empty: not known, or not there.

    A row of the catalog is for a package manager, for a system without its release (`rhel`), or for one
    release (`rhel8`). It states what differs from the row `of`.
    """

    id: str
    of: str | None = None
    manager: Literal["apt", "dnf", "zypper"]
    identities: tuple[str, ...] = ()
    """ID in os-release(5) of the systems with these packages."""
    origin: str | None = None
    """Origin in the Release file of the archive."""
    repository_file: str | None = None
    """gpuprov's own file of sources."""
    holds: Literal["dpkg", "versionlock"] | None = None
    automatic_updates: Literal["unattended-upgrades", "dnf-automatic"] | None = None
    exact: str = "={version}"
    """Text after a package's name that states its version."""
    reinstall: str | None = None
    """Command that brings back the files of `{package}` at `{version}`."""
    headers_prefix: str | None = None
    """Name of apt's package with a kernel's headers, before the kernel's release."""
    module_folder: str | None = None
    """Folder of a kernel in which DKMS installs modules."""
    initramfs: Literal["initramfs-tools", "dracut"] | None = None
    next_kernel: Literal["grub.cfg", "bls"] | None = None
    sshd_unit: str | None = None
    sshd_folder: str | None = None
    """Folder of drop-ins that sshd_config includes; None: its OpenSSH has none."""
    ldconfig: str = "@/sbin/ldconfig"
    """The program that the container toolkit runs on the host."""
    firewall: Literal["firewalld", "ufw"] | None = None
    access_control: Literal["apparmor", "selinux"] | None = None
    docker: Literal["distribution", "docker-ce"] | None = None
    podman: Literal["distribution"] | None = None
    python: str = "/usr/bin/python3"
    """The interpreter of Ansible's modules."""
    program_python: str | None = None
    """A Python that can run gpuprov itself."""
    logins: tuple[str, ...] = ()
    """Users of its images, in the order in which they are tried."""
    beside: tuple[Beside, ...] = ()
    tested: bool = False
    """Whether node tests have shown all roles on it: preflight accepts no other system."""
    source: Sources
    note: str = ""
