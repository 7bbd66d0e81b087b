"""Records of readings, in a common form for every kind of list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuprov.catalog.version import Version
from gpuprov.locking.catalogs.refresh.csaf import Advisory

Kind = Literal[
    "driver", "cuda", "compat", "cudnn", "nccl", "container_toolkit", "torch", "tensorflow", "archive"
]


@dataclass(frozen=True, slots=True)
class Seen:
    """One version of one product in one list.

    Attributes:
        where: the list: a system's id, or a wheel's name.
        details: further values in the list: `flavour` of a driver and the day on which it was `built`, `cuda`
            (of a `compat` package, of an NCCL build, of a wheel), `major`, `repository` and `series` of an
            archive's driver.
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
        legacy_branch: the last branch that supports it, if the list calls it a legacy GPU.
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
    """Complete content of one source on one day.

    Attributes:
        origin: `index-nvidia`, `index-archives`, `pypi`, `csaf-nvidia`.
        about: the source's entry in `sources`.
        lists: names of the lists that were read completely: a version missing there does not exist.
    """

    origin: str
    about: Mapping[str, str]
    lists: tuple[str, ...]
    seen: tuple[Seen, ...]
    gpu_lists: tuple[GpuList, ...] = ()
    advisories: tuple[Advisory, ...] = ()

    @property
    def source(self) -> str:
        """The key that records cite, with the day of the reading: keys of older records stay as they are."""
        return f"{self.origin}-{self.about['dated']}"


@dataclass(frozen=True, slots=True)
class NotRead:
    """A list that could not be read."""

    what: str
    why: str


Readings = Sequence[Reading | NotRead]


def plain(value: Any) -> str:
    """Return a value as text; the items of a list or tuple are separated by commas."""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
