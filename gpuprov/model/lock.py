"""The lock: the exact meaning of a fleet, and the only thing that anything after it reads.

Every version, package, setting and count that apply, drift and verify use stands here with its reason
and its source. The file is YAML, generated, committed and reviewed; its bytes depend on its inputs alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from gpuprov.model.components import COMPONENT
from gpuprov.model.connection import LOCAL, Connection, lay_over
from gpuprov.model.documents import (
    Places,
    Strict,
    read_text,
    render_document,
    shaped,
    write_document,
)
from gpuprov.model.floors import Floors
from gpuprov.model.hardware import NicHardware, NvmeHardware
from gpuprov.model.marked import Marked
from gpuprov.model.rollout import Rollout
from gpuprov.model.secure_boot import LockedSecureBoot


class Setting(Strict):
    """One value a node must have, why, and where that was decided."""

    value: Any
    reason: str
    source: str


class Component(Strict):
    """One piece of the software stack at exactly one version.

    `packages` are asked for by name; `closure` is everything of the same family that comes with them,
    `packages` included: it is installed in one transaction and held. Both map package → exact version.
    `beside` names packages of the system's own archive that have to be there, in whatever version it has.
    `stream` is the dnf module stream (`nvidia-driver:580-open`) that has to be enabled before.
    `hold_patterns` match, from their start, names of packages that unattended upgrades must leave alone.
    """

    version: str
    repository: str
    stream: str | None = None
    packages: dict[str, str]
    closure: dict[str, str]
    beside: list[str] = Field(default=[])
    hold_patterns: list[str]
    reason: str
    source: str


COMPILED = re.compile(r"(?<!no)-dkms")
"""How packages are called whose module DKMS compiles; `nvidia-headless-no-dkms` is none of them."""


class Driver(Component):
    """The NVIDIA driver: its branch and which kernel modules it uses.

    `module_package` brings the module or its source; a precompiled one has the version of its kernel.
    `build` is `once` where one node compiles for all that have its kernel: `builder`, or whichever is the
    first. With a `compiler` that is absent only the builder has one.
    """

    branch: int
    module: Literal["open", "proprietary"]
    module_package: str
    build: Literal["once"] | None = None
    builder: str | None = None
    compiler: Literal["absent"] | None = None

    @property
    def compiled(self) -> bool:
        """Whether DKMS compiles the module, and not the distribution."""
        return COMPILED.search(self.module_package) is not None

    @property
    def shared(self) -> bool:
        """Whether one node compiles the module, and the others get what it made."""
        return self.compiled and self.build == "once"

    def may_compile(self, node: str) -> bool:
        """Whether a node has a compiler, or may get one."""
        return self.compiler is None or node == self.builder

    @property
    def version_package(self) -> str:
        """A package that has the driver's version."""
        others = (name for name in self.packages if name != self.module_package)
        return self.module_package if self.compiled else next(others)


class Cuda(Component):
    """CUDA toolkits, which live side by side; `version` is the default one's.

    `toolkits` maps what an installation is called (`12.8`, as in /usr/local/cuda-12.8) to its exact version.
    """

    default: str
    toolkits: dict[str, str]


class Components(Strict):
    """The software stack of a group; what is not there is not managed.

    Fabric manager, NSCQ, NVSDM, NVLSM and IMEX stand here where the hardware needs them, at the driver's own
    version (but NVLSM, which has one of its own), and move with it in one transaction.
    """

    driver: Driver
    fabricmanager: Component | None = None
    nscq: Component | None = None
    nvsdm: Component | None = None
    nvlsm: Component | None = None
    imex: Component | None = None
    cuda: Cuda | None = None
    compat: Component | None = None
    cudnn: Component | None = None
    nccl: Component | None = None
    docker: Component | None = None
    containerd: Component | None = None
    container_toolkit: Component | None = None
    dcgm: Component | None = None
    profiling_tools: Component | None = None
    node_exporter: Component | None = None

    absent: dict[str, str] = Field(default={})
    """Components that must not be there → expression for the names of their packages."""

    def each(self) -> Iterator[tuple[str, Component]]:
        """The components that are stated, by name."""
        for name in type(self).model_fields:
            component = getattr(self, name)
            if isinstance(component, Component):
                yield name, component

    def with_driver(self) -> Iterator[tuple[str, Component]]:
        """The driver and what moves with it in one transaction."""
        return ((name, component) for name, component in self.each() if COMPONENT[name].with_driver)


class Repository(Strict):
    """Where packages come from: `url` as apt or dnf write it; empty `suites` means a flat repository.

    `url` null means: as the node's own package manager is configured; only `components` are added.
    `signed_by` is the armored key that its index was checked with, null where the node's own keys do.
    `frozen` is the day (UTC) of a mirror that stands still on purpose: its Valid-Until does not count.
    """

    url: str | None = None
    suites: list[str]
    components: list[str]
    signed_by: str | None = None
    frozen: date | None = None
    source: str


class Hardware(Strict):
    """What a node of the group must have; PCI ids as `10de:2335`. What is None or empty is not checked.

    `memory_mib` is the least that the kernel may report; the other numbers are the least as well, but for
    `gpu_count`.
    """

    gpu_model: str
    gpu_pci_ids: list[str]
    gpu_count: int = Field(ge=0)
    nvswitch: bool = False
    nvlink: bool | None = None
    nvswitches: int | None = None
    cpu_cores: int | None = None
    memory_mib: int | None = None
    nvme: NvmeHardware | None = None
    nics: list[NicHardware] = Field(default=[])


class Reboots(Strict):
    """Consent to reboot, and how many nodes at a time."""

    allowed: bool = False
    batch: int = Field(default=1, ge=1)
    timeout_s: int = Field(default=600, ge=1)


class LockedGroup(Strict):
    """Hosts that must all be the same.

    `hosts` maps a name to an address; `connections` a name to what is stated of the way to that host alone.
    Neither has anything that the fleet does not state.
    """

    profile: str
    hosts: dict[str, str]
    os: str
    arch: str
    site: str | None = None
    connection: Connection
    connections: dict[str, Connection] | None = None
    hardware: Hardware
    floors: Floors | None = None
    secure_boot: LockedSecureBoot | None = None
    reboot: Reboots
    repositories: dict[str, Repository]
    components: Components
    settings: dict[str, Setting]

    def connection_of(self, host: str) -> Connection:
        """What is stated of the way to one of the hosts."""
        own = (self.connections or {}).get(host)
        return lay_over(self.connection, own) if own else self.connection

    @property
    def login(self) -> str:
        """The user for whom sshd's options are judged: the one that is stated for the group, else root."""
        return self.connection.user or "root"

    def address_for_others(self, host: str) -> str:
        """Where others reach a host: the machine that gpuprov itself runs on by its name."""
        return host if self.hosts[host] == LOCAL else self.hosts[host]

    def setting(self, name: str) -> Any:
        """The value of a setting, None where the lock does not state it."""
        stated = self.settings.get(name)
        return stated.value if stated else None


class CatalogPin(Strict):
    """The release of the catalog that a lock was made with; `sha256` is of its files."""

    version: str = Field(pattern=r"^\d{4}(\.\d{1,4}){2,3}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Lock(Strict):
    """The whole fleet. `inputs` is a digest of everything it was made from.

    `catalog` is None in a lock that was made before catalogs were pinned: the one of gpuprov itself counts.
    """

    schema_: Literal["gpuprov.lock/1"] = Field(alias="schema", default="gpuprov.lock/1")
    inputs: str
    catalog: CatalogPin | None = None
    rollout: Rollout | None = None
    controllers: str | None = None
    groups: dict[str, LockedGroup]
    _places: Places = PrivateAttr(default_factory=Places)
    _path: Path | None = PrivateAttr(default=None)

    @property
    def path(self) -> Path | None:
        """The file that it was read from."""
        return self._path

    def place_of(self, host: str, *, address: bool = False) -> str:
        """`FILE:LINE` of what is stated of the way to a host, or of its address.

        Hosts that state nothing of their own share their group's line, so that lines about many fold. Empty
        for a lock that was not read from a file.
        """
        return self._places.get(f"{host} address" if address else host, "")

    def hosts(self) -> dict[str, LockedGroup]:
        """Host name → its group, in the file's order."""
        return {host: group for group in self.groups.values() for host in group.hosts}


HEADER = "# Written by `gpuprov lock`: the exact meaning of fleet.yml. Review it, commit it.\n"


def lock_beside(fleet: Path) -> Path:
    """Where the lock of a fleet file is, unless it is named: `fleet.lock.yml` beside `fleet.yml`."""
    return fleet.with_name(f"{fleet.stem}.lock.yml")


def read_lock(path: Path) -> Lock:
    """Read a lock file.

    Raises:
        InvalidInput: the file is missing, is not YAML, or does not have the lock's shape.
    """
    return lock_of(Marked(read_text(path, missing=_how_to_make(path)), str(path)))


def lock_of(document: Marked) -> Lock:
    """The lock that a document is.

    Raises:
        InvalidInput: it does not have the lock's shape.
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
    if path.name == "fleet.lock.yml":
        return "run `gpuprov lock` to make it"
    near = sorted(each.name for each in path.parent.glob("*.lock.yml"))
    there = f"name one that is there ({', '.join(near[:3])}), or make it: " if near else ""
    return f"{there}gpuprov lock --lock {shlex.quote(str(path))}"


def write_lock(lock: Lock, path: Path) -> None:
    """Write a lock; the same lock always gives the same bytes."""
    write_document(path, lock, header=HEADER)


def render_lock(lock: Lock) -> str:
    """The text `write_lock` writes."""
    return render_document(lock, header=HEADER)
