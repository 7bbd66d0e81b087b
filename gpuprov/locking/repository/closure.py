"""Packages that must change together: from a few names to all of their family, each at one version.

A driver consists of some forty packages that only work at the same version. The lock names them all, so that
they are installed in one transaction and held together. This is not a solver: outside the family nothing is
chosen. The rules are apt's basic ones (Debian Policy 7.1 and 7.5): an alternative that is already chosen,
else the first available one; a real package before one that provides the name. If a dependency allows several
versions, the dependent's own upstream version precedes a newer one, so that a pinned branch stays consistent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gpuprov.errors import Refused
from gpuprov.locking.repository.index import Alternatives, Index, Package, Relation
from gpuprov.locking.repository.limits import LOOK, NAME
from gpuprov.model.forms import of_family


def closure(index: Index, roots: Mapping[str, str | None], family: Collection[str]) -> dict[str, str]:
    """Return every package of the family that the roots need, with exactly one full version each.

    Args:
        roots: names to install, each with a full version, an upstream version or prefix of it, or None
            (newest).
        family: expressions for names of binary or source packages, as `forms.family` returns them.

    Returns:
        name -> full version, sorted by name, including the roots, in the family or not.

    Raises:
        Refused: a root is not offered, or a dependency within the family cannot be met; the message names the
            dependent packages and their demands.
    """
    return {name: package.version for name, package in sorted(closure_packages(index, roots, family).items())}


def closure_packages(
    index: Index, roots: Mapping[str, str | None], family: Collection[str]
) -> Mapping[str, Package]:
    """Return the packages of `closure` themselves, by name; they are followed once for equal arguments.

    The dependencies are followed again, with one more demand, until no chosen version clashes with a demand.

    Raises:
        Refused: as `closure`.
    """
    key = (*sorted(roots.items(), key=str), *family)
    if key not in index.closures:
        index.closures[key] = _followed(index, roots, list(map(of_family, family)))
    return index.closures[key]


def _followed(
    index: Index, roots: Mapping[str, str | None], family: Sequence[Callable[[str], bool]]
) -> dict[str, Package]:
    """Follow the dependencies; return the packages of `closure_packages`, and raise as it."""
    asked: dict[str, list[_Demand]] = {}
    while True:
        walk = _Walk(index, family, asked)
        clash = walk.run(roots)
        if clash is None:
            return walk.chosen
        asked.setdefault(clash.name, []).append(clash.demand)
        _check_possible(index, clash.name, asked[clash.name], walk.roots)


@dataclass(frozen=True)
class _Demand:
    """A dependency, with the package that has it."""

    by: str
    relation: Relation

    def __str__(self) -> str:
        return f"{self.by} needs {self.relation}"


@dataclass(frozen=True)
class _Clash:
    """A package chosen in a version that a later demand does not accept."""

    name: str
    demand: _Demand


@dataclass
class _Walk:
    """One pass from the roots through their dependencies, with the demands of earlier clashes."""

    index: Index
    family: Sequence[Callable[[str], bool]]
    asked: Mapping[str, list[_Demand]]
    chosen: dict[str, Package] = field(default_factory=dict)
    roots: dict[str, Package] = field(default_factory=dict)

    def run(self, roots: Mapping[str, str | None]) -> _Clash | None:
        """Fill `chosen`; return a clash if another pass must start with its demand, None if all dependencies
        are met.

        Raises:
            Refused: a root is not offered, or a dependency within the family cannot be met.
        """
        self.roots = {name: self._root(name, version) for name, version in roots.items()}
        self.chosen = dict(self.roots)
        waiting = list(self.roots.values())
        while waiting:
            package = waiting.pop(0)
            for alternatives in package.depends:
                found = self._meet(package, alternatives)
                if isinstance(found, _Clash):
                    return found
                if found:
                    self.chosen[found.name] = found
                    waiting.append(found)
        return None

    def _root(self, name: str, version: str | None) -> Package:
        """Return the package of exactly that version, else the newest of that upstream version; Refused
        if none exists.
        """
        if version and any(package.version == version for package in self.index.versions(name)):
            return self.index.exact(name, version)
        return self.index.candidate(name, version)

    def _meet(self, package: Package, alternatives: Alternatives) -> Package | _Clash | None:
        """Return the package that a dependency adds, None if it adds none, or the clash that prevents it.

        Raises:
            Refused: the dependency is on the family, and no package is acceptable.
        """
        if any(
            self.index.satisfies(chosen, wanted) for wanted in alternatives for chosen in self.chosen.values()
        ):
            return None
        clash = None
        for wanted in alternatives:
            demand = _Demand(f"{package.name} {package.version}", wanted)
            if wanted.name in self.chosen:
                clash = clash or _Clash(wanted.name, demand)
                continue
            offered = self._acceptable(package, wanted)
            if offered:
                best = offered[0]
                return best if self._in_family(best) else None
        if clash:
            return clash
        if any(self._is_of_family(wanted.name) for wanted in alternatives):
            raise self._unmet(package, alternatives)
        return None

    def _unmet(self, package: Package, alternatives: Alternatives) -> Refused:
        """Return the error for a dependency that no package meets, with earlier demands for the same
        names.
        """
        need = f"{package.name} {package.version} needs {' | '.join(map(str, alternatives))}"
        others = [demand for wanted in alternatives for demand in self.asked.get(wanted.name, ())]
        if others:
            return Refused(
                f"no version fits: {'; '.join([need, *map(str, others)])}",
                expected="versions that go together",
                do="ask for one version of the whole set",
            )
        return Refused(
            f"{need}, which no repository offers",
            expected=_offers(self.index, alternatives),
            do=f"look in {', '.join(self.index.origins)}, or name the repository that has it",
        )

    def _acceptable(self, package: Package, wanted: Relation) -> list[Package]:
        """Return packages for a relation that meet all earlier demands, best first.

        Best are those of its name, then of the same source, then of the same upstream version.
        """
        own = self.index.order.upstream(package.version)
        fitting = [
            other
            for other in self.index.providers(wanted)
            if other.name not in self.chosen
            and all(self.index.satisfies(other, demand.relation) for demand in self.asked.get(other.name, ()))
        ]

        def rank(other: Package) -> tuple[bool, bool, bool]:
            same_upstream = self.index.order.upstream(other.version) == own
            return (other.name != wanted.name, other.source != package.source, not same_upstream)

        return sorted(fitting, key=rank)

    def _in_family(self, package: Package) -> bool:
        """Return whether a package belongs to the family: its name matches, or that of its source."""
        return self._is_of_family(package.name) or self._is_of_family(package.source)

    def _is_of_family(self, name: str) -> bool:
        """Return whether a name is one of the family; a long one is not."""
        self.index.budget.spend(LOOK)
        return len(name) <= NAME and any(matches(name) for matches in self.family)


def _check_possible(index: Index, name: str, demands: list[_Demand], roots: Mapping[str, Package]) -> None:
    """Check that some version of a package meets all demands.

    Raises:
        Refused: no version does.
    """
    offered = [roots[name]] if name in roots else index.versions(name)
    if any(all(index.satisfies(package, demand.relation) for demand in demands) for package in offered):
        return
    asked = "; ".join(map(str, demands))
    chosen = f"{name} {roots[name].version} is asked for, but" if name in roots else "no version fits:"
    raise Refused(
        f"{chosen} {asked}",
        expected="versions that go together",
        do="ask for one version of the whole set",
    )


def _offers(index: Index, alternatives: Alternatives) -> str:
    """Return the versions that exist of the alternatives as text, possibly empty."""
    known = [f"{p.name} {p.version}" for wanted in alternatives for p in index.versions(wanted.name)]
    return f"one of {', '.join(known)}" if known else ""
