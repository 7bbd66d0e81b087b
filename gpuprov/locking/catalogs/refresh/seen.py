"""What was read, and what could not be: the same few words for every kind of list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuprov.catalog.version import Version

Kind = Literal[
    "driver", "cuda", "compat", "cudnn", "nccl", "container_toolkit", "torch", "tensorflow", "archive"
]


@dataclass(frozen=True, slots=True)
class Seen:
    """One version of one thing in one list.

    Attributes:
        where: the list: a system's id, or a wheel's name.
        details: what the list says beside the version: `flavour` of a driver, `cuda` (of a `compat` package,
            of an NCCL build, of a wheel), `major`, `repository` and `series` of an archive's driver.
    """

    kind: Kind
    version: Version
    where: str
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """One device in the list of a driver package.

    Attributes:
        device: four hexadecimal digits in capitals.
        legacy_branch: the last branch that drives it, where the list calls it a legacy one.
    """

    device: str
    name: str
    legacy_branch: int | None = None


@dataclass(frozen=True, slots=True)
class GpuList:
    """The list of one driver package."""

    release: Version
    package: str
    gpus: tuple[ListedGpu, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """All that one source had on one day.

    Attributes:
        origin: `index-nvidia`, `index-archives`, `pypi`.
        about: what `sources` says of it.
        lists: names of the lists that were read whole, so that what they lack is not there.
    """

    origin: str
    about: Mapping[str, str]
    lists: tuple[str, ...]
    seen: tuple[Seen, ...]
    gpu_lists: tuple[GpuList, ...] = ()

    @property
    def source(self) -> str:
        """The key that records cite: of this very day, so that no older record seems to be read anew."""
        return f"{self.origin}-{self.about['dated']}"


@dataclass(frozen=True, slots=True)
class NotRead:
    """A list that could not be read."""

    what: str
    why: str


Readings = Sequence[Reading | NotRead]


def plain(value: Any) -> str:
    """A value for a person: lists with commas."""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
