"""Rules of PyTorch, TensorFlow and JAX: the CUDA in a wheel, or the one that it loads from the host.

Sources: wheel metadata; PyTorch RELEASE.md; TensorFlow's table of tested builds; JAX's installation page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from gpuprov.catalog.catalog import Catalog
from gpuprov.catalog.records import CpuWheel, JaxBuild, WheelFloor
from gpuprov.catalog.version import Version, version
from gpuprov.errors import InvalidInput

_NAMES = {"torch": "torch", "pytorch": "torch", "tensorflow": "tensorflow", "tf": "tensorflow", "jax": "jax"}
_SPEC = re.compile(
    r"(?P<name>[a-z]+)(?:\[(?P<extra>[\w,-]+)\])?"
    r"\s*(?:[=~]=|[ =:@-])?\s*v?(?P<version>[0-9]{1,5}(?:\.[0-9]{1,5}){0,7})(?:\.\*)?"
    r"(?:\+(?P<build>cu[0-9]{2,4}|cpu|cuda[0-9]{2}(?:\.cudnn[0-9]{2,3})?))?"
)


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Builds with code for fewer GPUs than their toolkit supports."""

    version: Version
    cuda: Version
    capability: Version


TORCH_WITHOUT_OLD_GPUS = Trimmed(Version("2.8"), Version("12.8"), Version("7.5"))
"""Builds of PyTorch 2.8 and later for CUDA 12.8 and later lack Pascal and Volta, which need cu126
(RELEASE.md).
"""


FIRST_BY_MAJOR = 11
"""The first CUDA whose libraries are named by the major release alone."""


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework release as a request names it, and its facts in the catalog."""

    name: Literal["torch", "tensorflow", "jax"]
    version: Version
    build: str | None
    """`cu126`, `cpu`; None: the default wheel."""
    cuda: Version | None
    """CUDA X.Y inside the wheel; None: unknown, or a CPU build."""
    source: tuple[str, ...] = ()
    builds: tuple[Version, ...] = ()
    """CUDA of every build of that minor on the framework's own index, as far as its table extends."""
    known: bool = True
    cudnn: Version | None = None
    """cuDNN that a wheel without own libraries needs at least, of the same major."""
    of_host: bool = False
    """Whether the wheel has no CUDA, and loads that of the host."""

    def __str__(self) -> str:
        return f"{self.name}=={self.version}" + (f"+{self.build}" if self.build else "")


def find_framework(catalog: Catalog, text: str) -> Framework:
    """Parse `torch==2.6.0`, `torch==2.6.0+cu126` or `tensorflow==2.15`.

    A release that the catalog lacks is returned with `known` False.

    Raises:
        InvalidInput: another format or another framework.
    """
    match = _SPEC.fullmatch(text.strip().lower())
    if not match or match["name"] not in _NAMES:
        raise InvalidInput(
            f"framework {text!r} is not understood",
            expected="torch==2.6.0, torch==2.6.0+cu126, tensorflow==2.15",
        )
    release = version(match["version"])
    if _NAMES[match["name"]] == "torch":
        return _torch(catalog, release, match["build"])
    extra = (match["extra"] or "").replace("_", "-")
    if _NAMES[match["name"]] == "tensorflow":
        return _tensorflow(catalog, release, extra)
    return _jax(catalog, release, match["build"], extra)


def _torch(catalog: Catalog, release: Version, build: str | None) -> Framework:
    """Return the facts about a PyTorch release, by its wheel or the newest of its minor.

    Args:
        build: `cu126`, `cpu` or None (the default wheel).
    """
    rows = [row for row in catalog.tables["frameworks.pytorch_wheels"] if row.version.minor == release.minor]
    wheel = next((row for row in rows if row.version == release), rows[-1] if rows else None)
    table = next(
        (row for row in catalog.tables["frameworks.pytorch_builds"] if row.version == release.minor), None
    )
    builds = (*table.cuda_stable, *table.cuda_experimental) if table else ()
    source = tuple(dict.fromkeys((*(wheel.source if wheel else ()), *(table.source if table else ()))))
    default = table.default if table else None
    cuda = wheel.cuda if wheel else default
    if build and build != "cpu":
        cuda = version(f"{build[2:4]}.{build[4:] or 0}")
    elif build == "cpu":
        cuda = None
    known = wheel is not None or (default if build is None else table) is not None
    return Framework("torch", release, build, cuda, source, builds, known)


def _tensorflow(catalog: Catalog, release: Version, extra: str) -> Framework:
    """Return the facts about a TensorFlow release, by the newest tested build of its minor; without the extra
    `and-cuda` it loads the libraries of the host.
    """
    rows = [
        row for row in catalog.tables["frameworks.tensorflow_tested"] if row.version.minor == release.minor
    ]
    row = rows[-1] if rows else None
    return Framework(
        "tensorflow",
        release,
        None,
        row.cuda if row else None,
        row.source if row else (),
        known=row is not None,
        cudnn=row.cudnn if row else None,
        of_host="and-cuda" not in extra,
    )


def _jax(catalog: Catalog, release: Version, build: str | None, extra: str) -> Framework:
    """Return the facts about a JAX release with the build or extra that is named, else the extra `cuda`.

    Args:
        build: `cuda12`, `cuda12.cudnn89`, `cpu` or None.
    """
    if build == "cpu":
        return Framework("jax", release, build, None)
    rows: tuple[JaxBuild, ...] = catalog.tables["frameworks.jax_builds"]
    there = [row for row in rows if row.first <= release and (row.last is None or release <= row.last)]
    named = re.search(r"cuda([0-9]{2})", f"{build or ''} {extra}")
    if named:
        there = [row for row in there if row.cuda.major == int(named[1])]
    if not there:
        return Framework("jax", release, build, None, known=False)
    row = there[0]
    local = extra.endswith("-local") or "cudnn" in (build or "")
    return Framework("jax", release, build, row.cuda, row.source, cudnn=row.cudnn, of_host=local or not named)


def wheel_floor(catalog: Catalog, framework: Framework) -> WheelFloor | None:
    """Return the highest of the known least compute capabilities of a framework's wheel; None: none known."""
    minor = framework.version.minor
    rows: tuple[WheelFloor, ...] = catalog.tables["frameworks.wheel_floors"]
    fitting = [
        row
        for row in rows
        if row.framework == framework.name
        and row.first <= framework.version
        and (row.last is None or minor <= row.last)
        and (row.cuda is None or (framework.cuda is not None and framework.cuda.within(row.cuda)))
    ]
    return max(fitting, key=lambda row: row.min_compute_capability, default=None)


def cpu_wheel(catalog: Catalog, framework: Framework, arch: str) -> CpuWheel | None:
    """Return the record of a default wheel without CUDA for an architecture; None if it may have CUDA."""
    rows: tuple[CpuWheel, ...] = catalog.tables["frameworks.cpu_wheels"]
    fitting = [row for row in rows if (row.framework, row.arch) == (framework.name, arch)]
    early = [row for row in fitting if framework.version.minor <= row.last]
    return early[0] if early and framework.build is None else None


def toolkit_fits(framework: Framework, toolkit: Version) -> bool:
    """Return whether the host's toolkit has the libraries that a framework's wheel loads.

    Their names had the minor release of CUDA before 11, and have the major one since then. JAX checks that
    they are not older than its build's.
    """
    needed = framework.cuda
    if needed is None:
        return True
    if framework.name == "jax":
        return toolkit.major == needed.major and toolkit.minor >= needed.minor
    if needed.major >= FIRST_BY_MAJOR:
        return toolkit.major == needed.major
    return toolkit.minor == needed.minor


def build_exists(framework: Framework) -> bool | None:
    """Return whether the named CUDA build of a PyTorch release was published; None: the release is in no
    table.

    True for a default wheel and a CPU build. Source: PyTorch RELEASE.md.
    """
    if framework.build is None or framework.build == "cpu":
        return True
    return framework.cuda in framework.builds if framework.builds else None
