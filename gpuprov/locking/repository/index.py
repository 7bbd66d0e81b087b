"""Index of one or several repositories: every version of every package, in their own version order."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpuprov.errors import InvalidInput, Refused
from gpuprov.locking.repository.limits import COMPARISON, LOOK, Budget
from gpuprov.locking.repository.versions import Order, matches_upstream


@dataclass(frozen=True, slots=True)
class Relation:
    """One name in a dependency or in Provides: `libc6`, `libc6 (>= 2.34)`.

    `operator` is one of `<<`, `<=`, `=`, `>=`, `>>`, or empty if any version is accepted.
    """

    name: str
    operator: str = ""
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.operator} {self.version})" if self.operator else self.name


Alternatives = tuple[Relation, ...]
"""Alternatives; one is enough: `a | b`."""


@dataclass(frozen=True, slots=True)
class Package:
    """One version of one package, as its repository describes it.

    Attributes:
        version: the full version: `1:580.95.05-0ubuntu1`, or rpm's `3:610.57.04-1.el9`.
        source: the source package's name.
        depends: dependencies (Depends and Pre-Depends; rpm's Requires): one alternative of each is needed.
        filename: path of the file below `repository`.
        size: bytes.
        streams: dnf module streams that own this version (`nvidia-driver:570-dkms`); empty: always visible.
        repository: URL of the repository that offers it.
        built: day on which it was built, ISO; empty: not stated, as in every apt repository.
    """

    name: str
    version: str
    architecture: str
    source: str
    depends: tuple[Alternatives, ...] = ()
    provides: tuple[Relation, ...] = ()
    filename: str = ""
    size: int = 0
    sha256: str = ""
    streams: frozenset[str] = frozenset()
    repository: str = ""
    built: str = ""


class Records(Protocol):
    """Packages of one repository, found by name; `origin` is its URL."""

    @property
    def order(self) -> Order: ...

    @property
    def origin(self) -> str: ...

    def names(self) -> Iterable[str]:
        """Return every package name."""
        ...

    def packages(self, name: str) -> Sequence[Package]:
        """Return every version of a package; empty if it does not exist."""
        ...

    def providers(self, name: str) -> Iterable[str]:
        """Return names of packages that may provide `name`."""
        ...


@dataclass
class PackageList:
    """Records that are all in memory."""

    order: Order
    origin: str
    listed: Iterable[Package]
    by_name: dict[str, list[Package]] = field(init=False, default_factory=dict)
    provided: dict[str, set[str]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for package in self.listed:
            self.by_name.setdefault(package.name, []).append(package)
            for relation in package.provides:
                self.provided.setdefault(relation.name, set()).add(package.name)

    def names(self) -> Iterable[str]:
        """Return every package name."""
        return self.by_name

    def packages(self, name: str) -> Sequence[Package]:
        """Return every version of a package; empty if it does not exist."""
        return self.by_name.get(name, [])

    def providers(self, name: str) -> Iterable[str]:
        """Return the names of packages that provide a name in any version, possibly empty."""
        return self.provided.get(name, ())


class Index:
    """Packages of one or several repositories of the same packaging system.

    An index that was made to take long is refused after `STEPS`.
    """

    def __init__(self, *records: Records, budget: Budget | None = None) -> None:
        """Combine the packages of repositories.

        Args:
            budget: that of the index that this one derives from.

        Raises:
            InvalidInput: they are of different packaging systems, or there is no package.
        """
        if len({part.order.name for part in records}) != 1:
            raise InvalidInput("apt and rpm repositories cannot share one index")
        self.records = records
        self.order = records[0].order
        self._versions: dict[str, list[Package]] = {}
        self.budget = budget or Budget()
        self.by_streams: dict[tuple[str, ...], Index] = {}
        """Enabled module streams → the index with these, which many groups of a fleet share."""
        self.closures: dict[object, Mapping[str, Package]] = {}
        """Packages to install → all of their family, which many groups of a fleet share."""

    @property
    def origins(self) -> list[str]:
        """URLs of the repositories, each once."""
        return list(dict.fromkeys(part.origin for part in self.records))

    def union(self, *others: Index) -> Index:
        """Return this index combined with others; raises as `Index` if they cannot be combined."""
        more = (part for other in others for part in other.records)
        return Index(*self.records, *more, budget=self.budget)

    def only(self, visible: Callable[[Package], bool]) -> Index:
        """Return an index without the packages that are not visible; this one is unchanged."""
        return Index(*(_Visible(part, visible) for part in self.records), budget=self.budget)

    def names(self) -> set[str]:
        """Return every package name."""
        return {name for part in self.records for name in part.names()}

    def packages(self) -> Iterable[Package]:
        """Yield every version of every package."""
        return (package for part in self.records for name in part.names() for package in part.packages(name))

    def versions(self, name: str) -> list[Package]:
        """Return every version of a package in all repositories, newest first; empty if it does not exist.

        Raises:
            InvalidInput: one of them is no version.
            Refused: as `Budget.spend`.
        """
        if name not in self._versions:
            found = [p for part in self.records for p in part.packages(name)]
            self.budget.spend(COMPARISON * len(found) * len(found).bit_length())
            found.sort(key=lambda package: self.order.key(package.version), reverse=True)
            self._versions[name] = found
        return self._versions[name]

    def providers(self, relation: Relation) -> list[Package]:
        """Return packages that satisfy a relation: by name first, newest first, then by Provides."""
        found = [package for package in self.versions(relation.name) if self.satisfies(package, relation)]
        offering = {name for part in self.records for name in part.providers(relation.name)}
        self.budget.spend(LOOK * len(offering))
        for name in sorted(offering - {relation.name}):
            found += [package for package in self.versions(name) if self.satisfies(package, relation)]
        return found

    def satisfies(self, package: Package, relation: Relation) -> bool:
        """Return whether a package satisfies a relation, by its name or by Provides.

        An unversioned Provides does not satisfy a versioned relation in Debian (Policy 7.5); in rpm it does.
        Raises as `versions`.
        """
        offers = [Relation(package.name, "=", package.version), *package.provides]
        self.budget.spend(LOOK + len(offers))
        for offer in offers:
            if offer.name != relation.name:
                continue
            if not relation.operator or (not offer.version and self.order.bare_provides_any):
                return True
            self.budget.spend(COMPARISON)
            if offer.version and self.order.satisfies(offer.version, relation.operator, relation.version):
                return True
        return False

    def candidate(self, name: str, upstream: str | None = None, *, like: str = "*") -> Package:
        """Return the newest version of a package.

        Args:
            name: the package.
            upstream: an upstream version or a prefix of one that ends at a component: `535`, `580.95.05`.
            like: a shell pattern for the version without its epoch: `2.28.3-*+cuda13.0`.

        Raises:
            Refused: no such package, or none in this version; the message lists the available ones.
        """
        offered = self.versions(name)
        for package in offered:
            if fnmatch.fnmatchcase(re.sub(r"^\d+:", "", package.version), like) and (
                upstream is None or matches_upstream(self.order.upstream(package.version), upstream)
            ):
                return package
        raise self._no_candidate(name, upstream, like, offered)

    def exact(self, name: str, version: str) -> Package:
        """Return the package with exactly this full version.

        Raises:
            Refused: it is not offered.
        """
        for package in self.versions(name):
            if package.version == version:
                return package
        raise self._no_candidate(name, version, "*", self.versions(name))

    def _no_candidate(self, name: str, wanted: str | None, like: str, offered: list[Package]) -> Refused:
        """Return the error for a package that does not exist, or not in that version; lists the 8 newest
        versions.
        """
        where = ", ".join(self.origins)
        if not offered:
            return Refused(f"no package {name} in {where}", do="check the name, or name another repository")
        asked = " ".join(part for part in (wanted or "", "" if like == "*" else like) if part)
        newest = list(dict.fromkeys(package.version for package in offered))
        more = f" and {len(newest) - 8} older" if len(newest) > 8 else ""
        return Refused(f"no {name} {asked} in {where}", expected=f"one of {', '.join(newest[:8])}{more}")


@dataclass(frozen=True)
class _Visible:
    """Records with a filter of visible packages."""

    part: Records
    visible: Callable[[Package], bool]

    @property
    def order(self) -> Order:
        return self.part.order

    @property
    def origin(self) -> str:
        return self.part.origin

    def names(self) -> Iterable[str]:
        """Return every package name, also of packages without a visible version."""
        return self.part.names()

    def packages(self, name: str) -> Sequence[Package]:
        """Return the visible versions of a package, possibly empty."""
        return [package for package in self.part.packages(name) if self.visible(package)]

    def providers(self, name: str) -> Iterable[str]:
        """Return the names of packages that provide a name, also in a version that is not visible."""
        return self.part.providers(name)
