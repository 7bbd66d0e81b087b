"""Model of the lock: the exact meaning of a fleet, and the only input of apply, drift and verify.

Every version, package, setting and count has its reason and its source.
The file is YAML, generated, committed and reviewed; its bytes depend only on its inputs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, field_validator

from gpuprov.model.components import COMPONENT
from gpuprov.model.connection import LOCAL, Connection, HostAddress, HostName, lay_over
from gpuprov.model.documents import (
    HOW_TO_BEGIN,
    Places,
    Strict,
    read_text,
    render_document,
    shaped,
    write_document,
)
from gpuprov.model.floors import Floors
from gpuprov.model.forms import (
    Family,
    HoldPattern,
    Key,
    PackageName,
    PackageVersion,
    PartOfRepository,
    PciId,
    Release,
    RepositoryUrl,
    Stream,
    Word,
    Workers,
)
from gpuprov.model.hardware import NicHardware, NvmeHardware
from gpuprov.model.locked_settings import completed
from gpuprov.model.marked import Marked
from gpuprov.model.profile import NAME
from gpuprov.model.racks import Grouping
from gpuprov.model.rollout import Rollout
from gpuprov.model.secure_boot import LockedSecureBoot
from gpuprov.model.stack import BuilderName
from gpuprov.untrusted.within_limits import within_limits


class Setting(Strict):
    """A value that a node must have, its reason, and its source."""

    value: Any
    reason: str
    source: str


class Component(Strict):
    """One part of the software stack at exactly one version.

    `packages` are requested by name; `closure` has them and all packages of the same family that are
    installed with them, in one transaction, and held. Both map package → exact version. `beside` names
    packages of the system's own archive that must be installed, in any version. `stream` is the dnf module
    stream (`nvidia-driver:580-open`) that must be enabled before. `hold_patterns` match the start of the
    names of packages that unattended upgrades must not change. `download` is the size of the closure's
    package files in bytes, None in an older lock.
    """

    version: PackageVersion
    repository: Word
    stream: Stream | None = None
    packages: dict[PackageName, PackageVersion]
    closure: dict[PackageName, PackageVersion]
    download: int | None = Field(
        default=None, ge=0, le=1 << 50, description="size of the closure's package files in bytes"
    )
    beside: list[PackageName] = Field(default=[])
    hold_patterns: list[HoldPattern] = Field(max_length=200)
    reason: str
    source: str


SecurityPolicy = Literal["warn", "refuse", "ignore"]
"""Policy for versions that a security bulletin concerns."""

COMPILED = re.compile(r"(?<!no)-dkms")
"""Pattern of packages whose module DKMS compiles; `nvidia-headless-no-dkms` does not match."""


class Driver(Component):
    """The NVIDIA driver: its branch and which kernel modules it uses.

    `module_package` contains the module or its source; a precompiled one has the version of its kernel.
    `build` is `once` if nodes install modules that `builder` compiled: a host of the fleet, several whose
    builds must be the same bytes, or `image`. An older lock without a builder trusts no builder, and each
    node compiles. `builder_reason` states what that trust means. If `compiler` is `absent`, only builders
    have a compiler.
    """

    branch: int = Field(ge=0, le=9999)
    module: Literal["open", "proprietary"]
    module_package: PackageName
    build: Literal["once"] | None = None
    builder: BuilderName | Annotated[list[BuilderName], Field(min_length=2, max_length=4)] | None = None
    builder_reason: str | None = None
    compiler: Literal["absent"] | None = None

    @property
    def builders(self) -> tuple[str, ...]:
        """Builders of the group's module: hosts, or `image` alone; empty if each node compiles for itself."""
        if not self.shared or self.builder is None:
            return ()
        return (self.builder,) if isinstance(self.builder, str) else tuple(self.builder)

    @property
    def compiled(self) -> bool:
        """Whether DKMS compiles the module, and not the distribution."""
        return COMPILED.search(self.module_package) is not None

    @property
    def shared(self) -> bool:
        """Whether DKMS compiles the module once, on `builders`; a lock of an older release may name none."""
        return self.compiled and self.build == "once"

    def may_compile(self, node: str) -> bool:
        """Return whether a node has a compiler, or may get one."""
        return self.compiler is None or node in self.builders

    @property
    def version_package(self) -> str:
        """A package that has the driver's version; a precompiled module's package has its kernel's."""
        others = (name for name in self.packages if name != self.module_package)
        return self.module_package if self.compiled else next(others)


class Cuda(Component):
    """CUDA toolkits, installed in parallel; `version` is the default toolkit's.

    `toolkits` maps the name of an installation (`12.8`, as in /usr/local/cuda-12.8) to its exact version.
    """

    default: Release
    toolkits: dict[Release, PackageVersion]


class Components(Strict):
    """The software stack of a group; a component that is missing here is not managed.

    Fabric manager, NSCQ, NVSDM, NVLSM and IMEX are included if the hardware needs them, at the driver's
    version (NVLSM has a separate version), and change with the driver in one transaction.
    """

    driver: Driver
    fabricmanager: Component | None = None
    nscq: Component | None = None
    nvsdm: Component | None = None
    nvlsm: Component | None = None
    imex: Component | None = None
    doca_ofed: Component | None = None
    gds: Component | None = None
    cuda: Cuda | None = None
    compat: Component | None = None
    cudnn: Component | None = None
    nccl: Component | None = None
    docker: Component | None = None
    containerd: Component | None = None
    podman: Component | None = None
    container_toolkit: Component | None = None
    dcgm: Component | None = None
    profiling_tools: Component | None = None
    node_exporter: Component | None = None

    absent: dict[Word, Family] = Field(default={}, max_length=16)
    """Components that must be absent → expression for the names of their packages."""

    def each(self) -> Iterator[tuple[str, Component]]:
        """Yield the locked components with their names, in the order of the fields."""
        for name in type(self).model_fields:
            component = getattr(self, name)
            if isinstance(component, Component):
                yield name, component

    def versions(self) -> Iterator[tuple[str, str]]:
        """Yield (name of a component, locked version): of CUDA one for each toolkit, so names repeat."""
        for name, component in self.each():
            for version in (
                component.toolkits.values() if isinstance(component, Cuda) else [component.version]
            ):
                yield name, version

    def packages(self) -> list[str]:
        """Return the names of all packages of the closures, sorted."""
        return sorted({name for _, component in self.each() for name in component.closure})

    def with_driver(self) -> Iterator[tuple[str, Component]]:
        """Yield the driver and the components that change with it in one transaction."""
        return ((name, component) for name, component in self.each() if COMPONENT[name].with_driver)


class Repository(Strict):
    """A source of packages: `url` in the form of apt or dnf; empty `suites` means a flat repository.

    If `url` is null, the configuration of the node's package manager is kept, and only `components` are
    added. `signed_by` is the armored key that the index was checked with, null if the node's own keys apply.
    `frozen` is the day (UTC) of a mirror that is frozen on purpose: its Valid-Until is ignored.
    """

    url: RepositoryUrl | None = None
    suites: list[PartOfRepository]
    components: list[PartOfRepository]
    signed_by: Key | None = None
    frozen: date | None = None
    source: str


class Hardware(Strict):
    """The hardware that a node of the group must have; PCI ids as `10de:2335`.

    A value of None or an empty one is not checked. `gpu_count` is exact; the other numbers are minimums,
    `memory_mib` of the memory that the kernel reports.
    """

    gpu_model: str
    gpu_pci_ids: list[PciId]
    gpu_count: int = Field(ge=0, le=32)
    nvswitch: bool = False
    nvlink: bool | None = None
    nvswitches: int | None = Field(default=None, ge=0, le=32)
    cpu_cores: int | None = Field(default=None, ge=1, le=65_536)
    memory_mib: int | None = Field(default=None, ge=0, le=1 << 30)
    nvme: NvmeHardware | None = None
    nics: list[NicHardware] = Field(default=[], max_length=16)


class Reboots(Strict):
    """Permission to reboot, and the number of nodes at a time."""

    allowed: bool = False
    batch: int = Field(default=1, ge=1, le=1_000_000)
    timeout_s: int = Field(default=600, ge=1, le=604_800)


class LockedGroup(Strict):
    """Hosts that must all be the same.

    `hosts` maps a name to an address, `connections` a name to the host's own SSH values. Both contain only
    what the fleet states. `peers` are the addresses of all hosts of a group with IMEX, in a lock of only some
    of them.
    """

    profile: str = Field(pattern=NAME)
    hosts: dict[HostName, HostAddress]
    os: Word
    arch: Word
    site: str | None = None
    connection: Connection
    connections: dict[HostName, Connection] | None = None
    hardware: Hardware
    floors: Floors | None = None
    secure_boot: LockedSecureBoot | None = None
    reboot: Reboots
    repositories: dict[Word, Repository]
    components: Components
    settings: dict[str, Setting]
    peers: list[HostAddress] | None = None

    @field_validator("settings")
    @classmethod
    def _of_known_form(cls, stated: dict[str, Setting]) -> dict[str, Setting]:
        """Return the settings, with defaults in their values; raise ValueError for another form."""
        values = completed({name: each.value for name, each in stated.items()})
        return {name: each.model_copy(update={"value": values[name]}) for name, each in stated.items()}

    def connection_of(self, host: str) -> Connection:
        """Return the connection to one of the hosts: its own values override the group's."""
        own = (self.connections or {}).get(host)
        return lay_over(self.connection, own) if own else self.connection

    @property
    def login(self) -> str:
        """The user whose effective sshd options are checked: the group's stated user, else root."""
        return self.connection.user or "root"

    def address_for_others(self, host: str) -> str:
        """Return a host's address for other hosts: its name if it is the machine
        that gpuprov itself runs on.
        """
        return host if self.hosts[host] == LOCAL else self.hosts[host]

    @property
    def addresses(self) -> list[str]:
        """The sorted addresses of all hosts for other hosts; with IMEX also of those that this lock lacks."""
        return self.peers or sorted(map(self.address_for_others, self.hosts))

    def of_hosts(self, names: Collection[str]) -> Self:
        """Return the group with only these of its hosts; all are still the `peers` of IMEX."""
        hosts = {host: self.hosts[host] for host in self.hosts if host in names}
        partial = self.setting("imex") is not None and len(hosts) < len(self.hosts)
        return self.model_copy(update={"hosts": hosts, "peers": self.addresses if partial else self.peers})

    def setting(self, name: str) -> Any:
        """Return the value of a setting, or None if the lock does not state it."""
        stated = self.settings.get(name)
        return stated.value if stated else None


class CatalogPin(Strict):
    """The release of the catalog that a lock was made with; `sha256` is of its files."""

    version: str = Field(pattern=r"^\d{4}(\.\d{1,4}){2,3}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Lock(Strict):
    """The whole fleet. `inputs` is a digest of everything that the lock was made from.

    `security` is the fleet's policy for versions that a security bulletin concerns; None stands for `warn`.

    A lock that was made before catalogs were pinned has None as `catalog`: gpuprov's own catalog is used.
    """

    schema_: Literal["gpuprov.lock/1"] = Field(alias="schema", default="gpuprov.lock/1")
    inputs: str
    catalog: CatalogPin | None = None
    rollout: Rollout | None = None
    controllers: Workers | None = None
    security: SecurityPolicy | None = None
    racks: Grouping | None = None
    nvlink_domains: Grouping | None = None
    groups: dict[str, LockedGroup]
    _places: Places = PrivateAttr(default_factory=Places)
    _path: Path | None = PrivateAttr(default=None)
    _fleet: Path | None = PrivateAttr(default=None)

    @property
    def path(self) -> Path | None:
        """The file of the lock; None if it was not read from a file."""
        return self._path

    def with_places_of(self, hosts: Collection[str]) -> Self:
        """Return a copy that keeps the places of these hosts in the file, and no others."""
        wanted = {*hosts, *(f"{host} address" for host in hosts)}
        copied = self.model_copy()
        copied._places = Places({place: at for place, at in self._places.items() if place in wanted})
        return copied

    @property
    def fleet(self) -> Path | None:
        """The fleet file of the lock, absolute and with links resolved, which identifies the fleet.

        It is NAME.yml next to NAME.lock.yml if that exists, else fleet.yml there, which need not exist; or
        the path that `of_fleet` stated. None for a lock that was not read from a file.
        """
        return self._fleet if self._fleet or self._path is None else fleet_beside(self._path)

    def of_fleet(self, fleet: Path) -> Self:
        """Return a copy of the lock that belongs to another fleet file, for a lock in another folder."""
        copy = self.model_copy()
        copy._fleet = fleet
        return copy

    def place_of(self, host: str, *, address: bool = False) -> str:
        """Return `FILE:LINE` of a host's connection, or of its address.

        Hosts without their own connection share their group's line, so that lines about many fold. Empty for
        a lock that was not read from a file.
        """
        return self._places.get(f"{host} address" if address else host, "")

    def hosts(self) -> dict[str, LockedGroup]:
        """Return each host's group, in the file's order."""
        return {host: group for group in self.groups.values() for host in group.hosts}

    def group_of(self, host: str) -> LockedGroup:
        """Return the group of a host, without a mapping of all hosts."""
        return next(group for group in self.groups.values() if host in group.hosts)


LOCK_SUFFIX = ".lock.yml"
HEADER = "# Written by `gpuprov lock`: the exact meaning of fleet.yml. Review it, commit it.\n"


def lock_beside(fleet: Path) -> Path:
    """Return the default path of a fleet's lock: `fleet.lock.yml` next to `fleet.yml`."""
    return fleet.with_name(fleet.stem + LOCK_SUFFIX)


def fleet_beside(lock: Path) -> Path:
    """Return the fleet file of a lock's path, see `Lock.fleet`; neither needs to exist."""
    own = lock.with_name(lock.name.removesuffix(LOCK_SUFFIX) + ".yml")
    return (own if own.exists() else lock.with_name("fleet.yml")).resolve()


@within_limits()
def read_lock(path: Path) -> Lock:
    """Read a lock file.

    Raises:
        InvalidInput: the file is missing, is not YAML, or is not a valid lock.
    """
    return lock_of(Marked(read_text(path, missing=_how_to_make(path)), str(path)))


def lock_of(document: Marked) -> Lock:
    """Convert a document to a lock, with its path and the places of its hosts.

    Raises:
        InvalidInput: it is not a valid lock.
    """
    path, lock = document.name, shaped(document, Lock)
    lock._path = Path(path)
    for name, group in lock.groups.items():
        for host in group.hosts:
            own = ("groups", name, "connections", host)
            stated = own if own in document.lines else ("groups", name, "connection")
            lock._places[host] = f"{path}:{document.line(stated)}"
            lock._places[f"{host} address"] = f"{path}:{document.line(('groups', name, 'hosts', host))}"
    return lock


def _how_to_make(path: Path) -> str:
    """Return what to do about a missing lock: run `gpuprov lock`, begin with `gpuprov init`, or use another
    lock of the folder.
    """
    if path.name == "fleet.lock.yml":
        if not path.with_name("fleet.yml").exists():
            return f"there is no fleet.yml either: {HOW_TO_BEGIN}"
        return "run `gpuprov lock` to write it"
    near = sorted(each.name for each in path.parent.glob("*.lock.yml"))
    there = f"name one that is there ({', '.join(near[:3])}), or make it: " if near else ""
    return f"{there}gpuprov lock --lock {shlex.quote(str(path))}"


def write_lock(lock: Lock, path: Path) -> None:
    """Write a lock, or raise InvalidInput; the same lock always gives the same bytes."""
    write_document(path, lock, header=HEADER)


def render_lock(lock: Lock) -> str:
    """Return the text that `write_lock` writes."""
    return render_document(lock, header=HEADER)
