"""Lock files of pip as a list of pinned packages, and the files that pip fetches for them by hash."""

from __future__ import annotations

import contextlib
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker, default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename

from gpuprov.errors import GpuprovError, Unreachable
from gpuprov.locking.catalogs.pip import run_pip

ROOT = Path(__file__).parents[2]
SYSTEMS = {"linux": "Linux", "darwin": "Darwin"}
"""Value of `sys_platform` → value of `platform_system`, of the systems that run a controller."""
ANY = ("--platform", "any", "--implementation", "py", "--abi", "none")
"""Options with which pip downloads only wheels that are pure Python."""


class NoWheel(GpuprovError):
    """Error: an index has no wheel of a package for a platform."""


@dataclass(frozen=True)
class Pinned:
    """One package of a lock file.

    Attributes:
        name: normalized name.
        version: the exact version.
        marker: condition of the environment, or None for every one.
        hashes: `sha256:…` of all its wheels.
    """

    name: str
    version: str
    marker: Marker | None
    hashes: tuple[str, ...]

    @property
    def line(self) -> str:
        """The line of a requirements file, without the marker."""
        return f"{self.name}=={self.version} {self.with_hashes}"

    @property
    def with_hashes(self) -> str:
        """The options with the hashes."""
        return " ".join(f"--hash={each}" for each in self.hashes)

    @property
    def condition(self) -> str:
        """The marker as the end of a requirement; empty without one."""
        return f" ; {self.marker}" if self.marker else ""

    def needed(self, environment: Mapping[str, str]) -> bool:
        """Return whether the package is needed in an environment, see `environments`."""
        return self.marker is None or self.marker.evaluate(dict(environment))


def read_pins(text: str) -> list[Pinned]:
    """Return the packages of a lock file that uv or pip-tools has written.

    Raises:
        ValueError: a line is not a requirement of one exact version.
    """
    lines = re.sub(r"(?m)^\s*#.*$", "", text).replace("\\\n", " ").splitlines()
    return [_pinned(line) for line in lines if line.strip()]


def _pinned(line: str) -> Pinned:
    """Return the package of a line; raise ValueError if it is not a requirement of one exact version."""
    stated, *hashes = line.split("--hash=")
    found = Requirement(stated.strip())
    [version] = found.specifier
    return Pinned(
        canonicalize_name(found.name), version.version, found.marker, tuple(each.strip() for each in hashes)
    )


def pythons() -> list[tuple[int, int]]:
    """Return the Python versions that pyproject.toml allows, the oldest first."""
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    allowed = SpecifierSet(stated["requires-python"])
    return [(3, minor) for minor in range(99) if allowed.contains(f"3.{minor}")]


def environments(
    versions: Iterable[tuple[int, int]], systems: Iterable[str] = SYSTEMS
) -> Iterator[dict[str, str]]:
    """Yield the values of markers (PEP 508) for CPython of each version on each system."""
    for major, minor in versions:
        for system in systems:
            yield {
                **{name: str(value) for name, value in default_environment().items()},
                "implementation_name": "cpython",
                "platform_python_implementation": "CPython",
                "platform_system": SYSTEMS[system],
                "python_full_version": f"{major}.{minor}.0",
                "python_version": f"{major}.{minor}",
                "sys_platform": system,
            }


def download(pins: Sequence[Pinned], folder: Path, *options: str) -> None:
    """Download a wheel of each package by hash, without dependencies.

    Args:
        pins: packages, each name once; their markers are not evaluated.
        options: further options of pip, such as `ANY`.

    Raises:
        NoWheel: the index has no wheel with such a hash for the stated platform.
        GpuprovError: pip fails for another reason, or exceeds a limit of `run_pip`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    requirements = folder / "requirements.txt"
    requirements.write_text("".join(f"{each.line}\n" for each in pins))
    words = ["--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", *options]
    do = "check pip's index, then repeat"
    try:
        run_pip("download", *words, "--requirement", str(requirements), "--dest", str(folder), do=do)
    except Unreachable as error:
        kind = NoWheel if "No matching distribution" in error.seen else GpuprovError
        raise kind(error.seen, do=do) from None
    finally:
        requirements.unlink()


def pure(pins: Sequence[Pinned], folder: Path) -> dict[Pinned, Path]:
    """Download the packages that are pure Python; return their wheels, the same on every machine.

    A package is pure if it has a wheel for every platform. Packages that are not in the result have compiled
    wheels only.

    Raises:
        GpuprovError: pip fails.
    """
    [here] = environments([sys.version_info[:2]], [sys.platform])
    for_this = [pin for pin in pins if pin.needed(here)]
    download(for_this, folder / "here")  # in one call: most packages have one wheel only
    found = {pin: wheel for pin in for_this if _for_any(wheel := _wheel(pin, folder / "here"))}
    for pin in pins:
        again = folder / f"{pin.name}-{pin.version}"
        if pin not in found:
            with contextlib.suppress(NoWheel):
                download([pin], again, *ANY, "--ignore-requires-python")
                found[pin] = _wheel(pin, again)
    return found


def _wheel(pin: Pinned, folder: Path) -> Path:
    """Return the wheel of a package in a folder."""
    wheels = ((path, parse_wheel_filename(path.name)) for path in folder.glob("*.whl"))
    [found] = [path for path, said in wheels if said[0] == pin.name and str(said[1]) == pin.version]
    return found


def _for_any(wheel: Path) -> bool:
    """Return whether a wheel is for every platform, by its name."""
    return all(tag.platform == "any" and tag.abi == "none" for tag in parse_wheel_filename(wheel.name)[3])
