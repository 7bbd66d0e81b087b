"""The lock: the exact meaning of a fleet, and the only thing that anything after it reads.

Every version, package, setting and count that apply, drift and verify use stands here with its reason
and its source. The file is YAML, generated, committed and reviewed; its bytes depend on its inputs alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from gpuprov.documents import Strict, read_document, write_document


class Connection(Strict):
    """How the controller reaches the hosts of a group."""

    user: str = "root"
    port: int = Field(default=22, ge=1, le=65535)
    identity_file: str | None = None
    known_hosts: str | None = None
    jump: str | None = None


class Setting(Strict):
    """One value a node shall have, why, and where that was decided."""

    value: Any
    reason: str
    source: str


class Component(Strict):
    """One piece of the software stack at exactly one version.

    `packages` are asked for by name; `closure` is everything of the same family that comes with them,
    `packages` included: it is installed in one transaction and held. Both map package → exact version.
    """

    version: str
    repository: str
    packages: dict[str, str]
    closure: dict[str, str]
    reason: str
    source: str


class Driver(Component):
    """The NVIDIA driver: its branch and which kernel modules it uses."""

    branch: int
    module: Literal["open", "proprietary"]
    module_package: str
    hold_patterns: list[str]


class Components(Strict):
    """The software stack of a group; what is not stated is not managed."""

    driver: Driver

    def each(self) -> Iterator[tuple[str, Component]]:
        """The components that are stated, by name."""
        for name in type(self).model_fields:
            component = getattr(self, name)
            if component is not None:
                yield name, component


class Repository(Strict):
    """Where packages come from: `url` as apt or dnf write it; empty `suites` means a flat repository.

    `url` null means: as the node's own package manager is configured; only `components` are added.
    """

    url: str | None = None
    suites: list[str]
    components: list[str]
    signed_by: str | None = None
    source: str


class Hardware(Strict):
    """What a node of the group must have; PCI ids as `10de:2335`."""

    gpu_model: str
    gpu_pci_ids: list[str]
    gpu_count: int = Field(ge=0)
    nvswitch: bool = False


class Reboots(Strict):
    """Consent to reboot, and how many nodes at a time."""

    allowed: bool = False
    batch: int = Field(default=1, ge=1)
    timeout_s: int = Field(default=600, ge=1)


class LockedGroup(Strict):
    """Hosts that shall all be the same."""

    profile: str
    hosts: dict[str, str]
    os: str
    arch: str
    connection: Connection
    hardware: Hardware
    reboot: Reboots
    repositories: dict[str, Repository]
    components: Components
    settings: dict[str, Setting]

    def setting(self, name: str) -> Any:
        """The value of a setting, None where the lock does not state it."""
        stated = self.settings.get(name)
        return stated.value if stated else None


class Lock(Strict):
    """The whole fleet. `inputs` is a digest of everything it was made from."""

    schema_: Literal["gpuprov.lock/1"] = Field(alias="schema", default="gpuprov.lock/1")
    inputs: str
    groups: dict[str, LockedGroup]

    def hosts(self) -> dict[str, LockedGroup]:
        """Host name → its group, in the file's order."""
        return {host: group for group in self.groups.values() for host in group.hosts}


HEADER = "# Written by `gpuprov lock`: the exact meaning of fleet.yml. Review it, commit it.\n"


def read_lock(path: Path) -> Lock:
    """Read a lock file.

    Raises:
        InvalidInput: the file is missing, is not YAML, or does not have the lock's shape.
    """
    return read_document(path, Lock, missing="run `gpuprov lock` to make it")


def write_lock(lock: Lock, path: Path) -> None:
    """Write a lock; the same lock always gives the same bytes."""
    write_document(path, lock, header=HEADER)


def render_lock(lock: Lock) -> str:
    """The text `write_lock` writes."""
    from gpuprov.documents import render_document

    return render_document(lock, header=HEADER)
