"""Parsers of dpkg's and rpm's packages: holds, incomplete installations, files, preferred versions."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gpuprov.untrusted import package_name
from gpuprov.untrusted import version as package_version
from gpuprov.untrusted.kept import LIST, kept
from gpuprov.untrusted.wildcards import matcher

FILES_AT_MOST = 200
"""Number of differing files that the probe sends."""
DOUBLED = "in two versions"
"""State of a package of rpm that is installed in another version, too."""
SEVERAL = re.compile(r"(?:kernel(?:\d+\.\d+)?(?:-(?!headers|tools|srpm|rpm|doc)[a-z0-9]+)*|gpg-pubkey)\Z")
"""Packages that rpm has in several versions (dnf.conf(5), `installonlypkgs`); keys are such packages."""


@dataclass(frozen=True, slots=True)
class Package:
    """One package on disk. `version` with epoch and release, as the package manager compares it."""

    name: str
    version: str
    arch: str
    source: str
    state: str
    """`installed`, `config-files`, or dpkg's term for a broken state: `half-configured`, `unpacked`, …"""
    held: bool


@dataclass(frozen=True, slots=True)
class Packages:
    """The requested packages; with dpkg also every held or broken one."""

    manager: str
    """`dpkg` or `rpm`."""
    by_name: Mapping[str, Package]
    interrupted: bool
    """Whether dpkg was stopped in the middle of a run and left its journal."""

    def version(self, name: str) -> str | None:
        """Return the version of an installed package; `None` if it is not installed or only its configuration
        is left.
        """
        package = self.by_name.get(name)
        return package.version if package and package.state not in ("not-installed", "config-files") else None

    def complete(self, name: str) -> str | None:
        """Return the version of a completely installed package; `None` if it is only unpacked, or missing."""
        package = self.by_name.get(name)
        return package.version if package and package.state == "installed" else None

    @property
    def held(self) -> frozenset[str]:
        """Names of packages that the package manager will not change by itself."""
        return frozenset(name for name, package in self.by_name.items() if package.held)

    @property
    def broken(self) -> tuple[Package, ...]:
        """Packages that are neither completely installed nor removed."""
        settled = ("installed", "config-files", "not-installed")
        return tuple(package for package in self.by_name.values() if package.state not in settled)


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file of a package that is missing, diverted, or not as the last apply left it."""

    package: str
    path: str
    state: str

    def __str__(self) -> str:
        """Return `libcuda1 /usr/lib/x86_64-linux-gnu/libcuda.so.1 is missing`."""
        return f"{self.package} {self.path} {self.state}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A version that apt would take by preference instead of the installed one; `none` if it takes none."""

    package: str
    version: str
    priority: int
    source: str

    def __str__(self) -> str:
        """Return `libcuda1 999 of file:/srv/extra ./ Packages (priority 1001)`."""
        origin = f" of {self.source} (priority {self.priority})" if self.source else ""
        return f"{self.package} {self.version}{origin}"


@dataclass(frozen=True, slots=True)
class Candidates:
    """Preferred versions, and `path:line` of the preferences that state their priorities."""

    preferred: tuple[Candidate, ...]
    places: tuple[str, ...]


def parse_candidates(raw: Mapping[str, Any]) -> Candidates:
    """Parse the probe's rows of name, version, priority and source, and its places.

    Raises:
        NodeFailed: a name is not one of a package.
        KeyError, TypeError, IndexError, ValueError: the rows have another form.
    """
    rows = raw["rows"]
    found = (Candidate(package_name(row[0]), str(row[1]), int(row[2]), str(row[3])) for row in rows)
    return Candidates(tuple(found), tuple(map(str, raw["places"])))


def parse_package_files(raw: Iterable[Any]) -> tuple[ChangedFile, ...]:
    """Parse the probe's rows of name, path and state, at most `FILES_AT_MOST`; errors as of
    `parse_candidates`.
    """
    rows = islice(raw, FILES_AT_MOST)
    return tuple(ChangedFile(package_name(name), str(path), str(state)) for name, path, state in rows)


@kept(16, LIST)
def parse_dpkg(text: str, interrupted: bool = False) -> Packages:
    """Parse lines of name, architecture, version, source and dpkg's three-word status, separated by tabs.

    A second package of a name, of another architecture, has `name:arch` as its key. Raises as `_fields`.
    """
    found: dict[str, Package] = {}
    for fields in _fields(text, 5):
        name, arch, version, source, status = fields
        want, _, state = status.partition(" ")
        package = Package(
            name, version, arch, source, state.split()[-1] if state else "unknown", want == "hold"
        )
        # A library of a second architecture is stored as name:arch, so that the first keeps its name.
        found[f"{name}:{arch}" if name in found else name] = package
    return Packages("dpkg", found, interrupted)


@kept(16, LIST)
def parse_rpm(text: str, locks: tuple[str, ...] = ()) -> Packages:
    """Parse lines of name, architecture, epoch:version-release and source, separated by tabs, and dnf's
    version locks. The first row of a name has the name as its key, later ones name-version.

    Raises:
        NodeFailed: a name or version is not a package's, or the version locks would take too long to compare.
    """
    rows = list(_fields(text, 4))
    is_locked = matcher(locks, len(rows))
    found: dict[str, Package] = {}
    for name, arch, version, source in rows:
        epoch, _, rest = version.rpartition(":")
        version = rest if epoch in ("", "0", "(none)") else version
        with_epoch = f"{name}-{epoch or 0}:{rest}"
        spellings = (name, f"{name}-{rest}", f"{name}-{rest}.{arch}", with_epoch, f"{with_epoch}.{arch}")
        # A killed dnf leaves packages in two versions.
        first = found.get(name)
        state = DOUBLED if first and first.arch == arch and not SEVERAL.match(name) else "installed"
        found[f"{name}-{version}" if first else name] = Package(
            name, version, arch, source, state, is_locked(spellings)
        )
    return Packages("rpm", found, interrupted=False)


def parse_versionlock(text: str) -> tuple[str, ...]:
    """Return patterns of dnf's versionlock.list, without comments and exclusions (`!pattern`)."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith(("#", "!")))


def _fields(text: str, count: int) -> Iterator[list[str]]:
    """Yield the lines that have `count` fields; name and version are the first and the third.

    A text of only plain characters, as nearly all are, is checked at once and not line by line.

    Raises:
        NodeFailed: a name or a version that no package has.
    """
    plain = text.isascii() and not text.encode().translate(None, _PLAIN) and not _ODD.search(text)
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) == count:
            if not plain or len(line) > _LONGEST:
                package_name(fields[0])
                _ = fields[2] and package_version(fields[2].removeprefix("(none):"))
            yield fields


_PLAIN = (string.ascii_letters + string.digits + "+.:~^_-()\t\n ").encode()
_LONGEST = 128
"""Length of a line from which on its name and version are checked separately."""
_ODD = re.compile(r"^[^A-Za-z0-9\n]", re.MULTILINE)
