"""Records of combinations that do not work: a fact about two or more parts of a stack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuprov.catalog.records.hardware import Flavour, Sources
from gpuprov.catalog.version import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Releases from one on, and before another; a missing bound excludes nothing."""

    first: Version | None = None
    before: Version | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A combination that does not work: one to which all stated conditions apply.

    A value that is not known, or not stated in a request, meets no condition.
    """

    id: str
    rule: str
    """Name of the finding; several limits can have the same."""
    refused: bool
    """False: it works within limits, or may be changed by the user; a warning."""
    driver: Span | None = None
    kernel: Span | None = None
    cuda: Span | None = None
    cudnn: Span | None = None
    nccl: Span | None = None
    nccl_build: Span | None = None
    """CUDA for which NCCL was built."""
    container_toolkit: Span | None = None
    docker: Span | None = None
    gds: Span | None = None
    doca_ofed: Span | None = None
    glibc: Span | None = None
    """The system's."""
    python: Span | None = None
    """The system's own."""
    framework: Literal["torch", "tensorflow", "jax"] | None = None
    release: Span | None = None
    """Releases of the framework."""
    framework_cuda: Span | None = None
    """CUDA in the framework's wheel."""
    capability: Span | None = None
    """Compute capability of a GPU of the machine."""
    superchip: bool | None = None
    os: tuple[str, ...] = ()
    arch: str | None = None
    flavour: Flavour | None = None
    text: str
    """The failure and the remedy; the finding begins with the parts of the stack."""
    source: Sources
