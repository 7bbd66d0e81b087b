"""Parsers of files, GPU users and the state after an installation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuprov.errors import NodeFailed
from gpuprov.untrusted import lines_of
from gpuprov.untrusted.numbers import finite
from gpuprov.untrusted.parsing import read_object

LEASE = 4096
"""Maximum size of a lease in bytes."""
LONGEST_S = 366 * 86400.0
"""Maximum duration that a node's times give, which depend on its clock."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A run that holds a node: seconds since it took the lease, and since the dead man's switch was armed.

    None without a lease that has not ended, or if the switch is not armed.
    """

    lease_s: float | None = None
    armed_s: float | None = None


def parse_holding(raw: Mapping[str, Any]) -> Holding:
    """Parse the lease's file and the time at which the switch was armed; a damaged or expired lease does not
    count. Both become the seconds that have passed since; None without one.

    Raises:
        NodeFailed: one of the two times of the probe is not a number.
    """
    now, armed = finite(raw["now"]), raw["armed"]
    lease_s = None
    try:
        lease = read_object(raw["lease"] or "{}", LEASE)
        if now < finite(lease["until"]):
            lease_s = _duration(now - finite(lease["since"]))
    except (ValueError, KeyError, TypeError, NodeFailed):
        lease_s = None
    return Holding(lease_s, None if armed is None else _duration(now - finite(armed)))


def _duration(seconds: float) -> float:
    """Return a duration in seconds between 0 and `LONGEST_S`."""
    return min(max(0.0, seconds), LONGEST_S)


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
    """The path with all links resolved."""

    @property
    def exists(self) -> bool:
        """Whether the path exists, as a file or anything else."""
        return self.kind != "absent"


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Current users of the GPUs: processes with an open /dev/nvidia*, and containers with GPUs."""

    processes: Mapping[int, str]
    """pid → name, including NVIDIA's own daemons."""
    containers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SecureBoot:
    """Enforcement by firmware and kernel, and the enrolled certificates."""

    on: bool | None
    """Secure Boot of the firmware; `None`: not an EFI machine."""
    enforced: bool
    """Whether the kernel accepts only signed modules."""
    enrolled: frozenset[str]
    """SHA-256 of the certificates in the firmware's db and shim's list, without revoked ones."""
    trusted: tuple[str, ...]
    """Names of the certificates in the kernel's keyrings, which root can read."""
    vendor: str
    """The machine's vendor in its firmware: a cloud's name."""


def parse_secure_boot(on: bool | None, raw: Mapping[str, Any]) -> SecureBoot:
    """Parse the firmware's state, and the probe's further values; revoked certificates do not count as
    enrolled.
    """
    lists: Mapping[str, list[str]] = raw["certificates"]
    enrolled = {*lists["db"], *lists["MokListRT"]} - {*lists["dbx"], *lists["MokListXRT"]}
    locked = raw["enforced"] or raw["lockdown"] in ("integrity", "confidentiality")
    enforced = bool(locked and not raw["ignored_by_shim"])
    return SecureBoot(on, enforced, frozenset(enrolled), tuple(raw["kernel"]), raw["vendor"])


@dataclass(frozen=True, slots=True)
class NodeState:
    """State that installations and boots leave, which no single component owns."""

    reboot_required: bool
    reboot_packages: tuple[str, ...]
    secure_boot: bool | None
    """`None`: not an EFI machine."""
    cloud_init: str
    """`done`, `running`, `error`, `disabled`, or empty without cloud-init."""
    foreign_drivers: tuple[str, ...]
    """Files of a driver from outside the package manager."""
    free_mib: Mapping[str, int]
    """Mount point → free space for root."""
    device_nodes: tuple[str, ...]
    """/dev/nvidia*, sorted."""
    package_manager_busy: str | None
    """The process that holds the package manager's lock, or None."""


@dataclass(frozen=True, slots=True)
class Nccl:
    """NCCL on the system: its configuration file's settings and the libraries found, newest last."""

    settings: Mapping[str, str]
    own: Mapping[str, Mapping[str, str]]
    """A login's own file → its settings, which override the system's."""
    libraries: Mapping[str, str]
    """Path → version in the name of the link's target."""
    closed: bool = False
    """Whether only root can read the system's file."""


def parse_nccl_conf(text: str) -> dict[str, str]:
    """Parse `NAME=value` lines of nccl.conf as libnccl does: the first line for a name counts.

    A name with a space is another variable's, which nothing reads.
    """
    pairs = (line.partition("=") for line in lines_of(text) if not line.startswith("#"))
    found: dict[str, str] = {}
    for name, equals, value in pairs:
        if equals and name.isidentifier():
            found.setdefault(name, value.rstrip())
    return found
