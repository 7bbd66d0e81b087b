"""Rules of PyTorch and TensorFlow: the CUDA in a wheel, independent of the host's toolkit.

Sources: wheel metadata; PyTorch RELEASE.md; TensorFlow's table of tested builds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from gpuprov.catalog.catalog import Catalog
from gpuprov.catalog.records import CapabilityFloor
from gpuprov.catalog.version import Version, version
from gpuprov.errors import InvalidInput

_NAMES = {"torch": "torch", "pytorch": "torch", "tensorflow": "tensorflow", "tf": "tensorflow", "jax": "jax"}
_SPEC = re.compile(
    r"(?P<name>[a-z]+)(?:\[(?P<extra>[\w,-]+)\])?"
    r"\s*(?:[=~]=|[ =:@-])?\s*v?(?P<version>[0-9]{1,5}(?:\.[0-9]{1,5}){0,7})(?:\.\*)?"
    r"(?:\+(?P<build>cu[0-9]{2,4}|cpu))?"
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

    def __str__(self) -> str:
        return f"{self.name}=={self.version}" + (f"+{self.build}" if self.build else "")


def find_framework(catalog: Catalog, text: str) -> Framework:
    """Parse `torch==2.6.0`, `torch==2.6.0+cu126` or `tensorflow==2.15`.

    A release that the catalog lacks, and every release of `jax`, is returned with `known` False.

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
    if _NAMES[match["name"]] == "tensorflow":
        return _tensorflow(catalog, release)
    return Framework("jax", release, match["build"], None, known=False)


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


def _tensorflow(catalog: Catalog, release: Version) -> Framework:
    """Return the facts about a TensorFlow release, by the newest tested build of its minor."""
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
    )


def torch_floor(catalog: Catalog, framework: Framework) -> CapabilityFloor | None:
    """Return the lowest compute capability in wheels of a PyTorch release; None for another framework."""
    rows: tuple[CapabilityFloor, ...] = catalog.tables["frameworks.torch_floors"]
    after = [row for row in rows if framework.version.minor > row.after and framework.name == "torch"]
    return max(after, key=lambda row: row.after, default=None)


def build_exists(framework: Framework) -> bool | None:
    """Return whether the named CUDA build of a PyTorch release was published; None: the release is in no
    table.

    True for a default wheel and a CPU build. Source: PyTorch RELEASE.md.
    """
    if framework.build is None or framework.build == "cpu":
        return True
    return framework.cuda in framework.builds if framework.builds else None
