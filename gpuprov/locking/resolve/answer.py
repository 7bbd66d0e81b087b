"""Answers of the resolver: a stack with its reasons, or a refusal with alternatives that would work."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gpuprov.errors import GpuprovError

SCHEMA = "gpuprov.resolve/1"

Verdict = Literal["ok", "warn", "refused"]


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """One reason, warning or violation."""

    rule: str
    """The rule's name, as in `gpuprov.catalog.rules` (`cuda-native`)."""
    text: str
    source: str
    """Titles, addresses and dates of the rule's sources, or `stated` for the request itself."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Versions for one machine. `"none"` is deliberately absent, None was neither stated nor chosen."""

    os: str | None = None
    """The catalog's name of the system: `ubuntu24.04`, `rhel9`."""
    arch: str | None = None
    driver: str | None = None
    branch: int | None = None
    module: str | None = None
    module_build: str | None = None
    """`precompiled`, or None: compiled on the machine if the packages use DKMS."""
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    """With its build if known: `2.29.7+cuda13.2`."""
    container_toolkit: str | None = None
    fabricmanager: str | None = None
    nscq: str | None = None
    nvsdm: str | None = None
    nvlsm: str | None = None
    """None: needed, in the repository's version."""
    imex: str | None = None
    dcgm: str | None = None
    """Major version."""
    compat: str | None = None
    """CUDA version of the forward-compatibility package."""
    docker: str | None = None
    podman: str | None = None
    gds: str | None = None
    """Version of nvidia-fs; `auto`: needed, in the repository's version."""
    doca_ofed: str | None = None
    """DOCA-OFED's release; `auto`: needed, in the repository's version."""
    kernel: str | None = None
    framework: str | None = None
    repository: str | None = None
    """Repository of the driver: `nvidia` or `distribution`."""


@dataclass(frozen=True, slots=True)
class PackageSet:
    """The packages of one component. Exact package versions are looked up in an index, never composed."""

    names: tuple[str, ...]
    """Packages to install by name; the rest of the closure follows by dependency."""
    version: str | None
    """Exact upstream version of every package in `names` (`580.95.05`: any epoch and revision of it), or a
    pattern (`12.8.*`); None: the index's version.
    """
    repository: str
    """Id of a repository in the catalog: `nvidia`, `container-toolkit`, `debian`, `debian-security`,
    `ubuntu`.
    """
    hold: tuple[str, ...] = ()
    """Shell patterns of package names: every installed package that matches belongs to the component and is
    held.
    """
    pin: tuple[str, ...] = ()
    """Pinning packages (apt) to install before, or version-lock globs (dnf)."""
    stream: str | None = None
    """dnf module stream to enable before: `nvidia-driver:580-open`."""
    module: str | None = None
    """The package with a precompiled module, which has its own version."""
    unversioned: tuple[str, ...] = ()
    """Further packages to install that have their own versions (`nvidia-persistenced` in Debian)."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A request that differs in one field and works."""

    change: str
    """The field to change: `driver`, `cuda`, `gpus` ..."""
    value: str
    verdict: Verdict
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The resolver's answer for one request."""

    verdict: Verdict
    stack: Stack
    packages: dict[str, PackageSet] = field(default_factory=dict)
    """Component (`driver`, `cuda`, `cudnn` ...) to its packages; empty when refused."""
    reasons: tuple[RuleFinding, ...] = ()
    warnings: tuple[RuleFinding, ...] = ()
    violations: tuple[RuleFinding, ...] = ()
    nearest: tuple[Alternative, ...] = ()
    """For a refusal: the nearest stacks that would work, each one change away."""
    gpus: tuple[str, ...] = ()
    """Catalog ids of the recognised GPUs."""

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON-ready data with its `schema`."""
        return {"schema": SCHEMA, **asdict(self)}


def failed(error: GpuprovError) -> dict[str, Any]:
    """Return the answer to an invalid request: the same structure, with `error` and an empty stack."""
    empty = dict.fromkeys(("reasons", "warnings", "violations", "nearest", "gpus"), ())
    result = {"seen": error.seen, "expected": error.expected, "do": error.do, "text": str(error)}
    return {"schema": SCHEMA, "verdict": "error", "error": result, "stack": None, "packages": {}, **empty}
