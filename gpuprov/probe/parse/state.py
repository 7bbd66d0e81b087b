"""Files, GPU users and what an installation left behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FileFact:
    """One managed file. `mode` as in `0644`; `sha256` is `None` for anything but a readable file."""

    path: str
    kind: str
    """`file`, `directory`, `link`, `other` or `absent`."""
    mode: str
    owner: str
    group: str
    size: int
    sha256: str | None
    target: str | None
    leads_to: str | None = None
    """The path with every link on it followed."""

    @property
    def exists(self) -> bool:
        """Whether anything is at that path."""
        return self.kind != "absent"


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Who holds the GPUs now: processes with an open /dev/nvidia*, and containers that were given GPUs."""

    processes: Mapping[int, str]
    """pid → name, NVIDIA's own daemons included."""
    containers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SecureBoot:
    """What is enforced, and the certificates that are enrolled."""

    on: bool | None
    """In the firmware; `None`: not an EFI machine."""
    enforced: bool
    """Whether the kernel takes signed modules only."""
    enrolled: frozenset[str]
    """SHA-256 of the certificates in the firmware's db and shim's list, without those that are revoked."""
    trusted: tuple[str, ...]
    """Names of the certificates in the kernel's keyrings; root sees them."""
    vendor: str
    """Whose machine it is, as its firmware says: a cloud's name."""


def parse_secure_boot(on: bool | None, raw: Mapping[str, Any]) -> SecureBoot:
    """The firmware's word, and what the probe read beside it."""
    lists: Mapping[str, list[str]] = raw["certificates"]
    enrolled = {*lists["db"], *lists["MokListRT"]} - {*lists["dbx"], *lists["MokListXRT"]}
    locked = raw["enforced"] or raw["lockdown"] in ("integrity", "confidentiality")
    enforced = bool(locked and not raw["ignored_by_shim"])
    return SecureBoot(on, enforced, frozenset(enrolled), tuple(raw["kernel"]), raw["vendor"])


@dataclass(frozen=True, slots=True)
class NodeState:
    """What the last installation or boot left behind."""

    reboot_required: bool
    reboot_packages: tuple[str, ...]
    secure_boot: bool | None
    """`None`: not an EFI machine."""
    cloud_init: str
    """`done`, `running`, `error`, `disabled`, or empty when there is no cloud-init."""
    foreign_drivers: tuple[str, ...]
    """Files that only a driver from outside the package manager leaves."""
    free_mib: Mapping[str, int]
    """Mount point → free space for root."""
    device_nodes: tuple[str, ...]
    """/dev/nvidia*, sorted."""
    package_manager_busy: str | None
    """Who holds the package manager's lock, if anybody does."""


@dataclass(frozen=True, slots=True)
class Nccl:
    """NCCL on the system: its configuration file's settings and the libraries found, newest last."""

    settings: Mapping[str, str]
    own: Mapping[str, Mapping[str, str]]
    """A login's own file → its settings, which go before the system's."""
    libraries: Mapping[str, str]
    """Path → version from the file it leads to."""


def parse_nccl_conf(text: str) -> dict[str, str]:
    """`NAME=value` lines of nccl.conf."""
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}
