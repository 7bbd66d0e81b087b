"""Exact packages of the resolver's answer: every version is looked up in the repository's own index."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal, TypedDict

from gpuprov.catalog.records import System
from gpuprov.errors import InvalidInput, Refused
from gpuprov.locking.archives import Archives, Finder
from gpuprov.locking.repository.closure import closure
from gpuprov.locking.repository.index import Index
from gpuprov.locking.repository.sources import ARCHIVE_SUITES
from gpuprov.locking.repository.versions import matches_upstream
from gpuprov.locking.resolve import Answer, PackageSet
from gpuprov.model.components import COMPONENT, MOVE_WITH_DRIVER
from gpuprov.model.forms import family
from gpuprov.model.lock import COMPILED, Component, Cuda, Driver, Repository
from gpuprov.untrusted import shown


class _Exact(TypedDict):
    """Fields common to the records of all components."""

    version: str
    repository: str
    stream: str | None
    packages: dict[str, str]
    closure: dict[str, str]
    download: int | None
    beside: list[str]
    hold_patterns: list[str]
    reason: str
    source: str


class Locker:
    """Converter of one group's components to exact versions.

    Attributes:
        repositories: the repositories of the components converted so far, by id.
    """

    def __init__(
        self, finder: Finder, system: System, arch: str, answer: Answer, previous: Mapping[str, Component]
    ) -> None:
        """Keep the arguments; nothing is looked up yet.

        Args:
            previous: locked components: if the version is kept, so are the packages, as long as the
                repository has them.
        """
        self._finder, self._system, self._arch = finder, system, arch
        self._answer, self._previous = answer, previous
        self.repositories: dict[str, Repository] = {}
        self._decided: dict[str, str] = {}
        self._driver_version = ""

    def following(self) -> Iterator[str]:
        """Yield components that the hardware needs with the driver, if they come from the driver's
        repository.
        """
        sets = self._answer.packages
        for name in MOVE_WITH_DRIVER[1:]:
            if name in sets and sets[name].repository == sets["driver"].repository:
                yield name

    def driver(self, build: Literal["once"] | None) -> Driver:
        """Return the driver with its pinning package.

        Args:
            build: how a module that DKMS compiles is built; ignored for a precompiled module.

        Raises:
            Refused: the repository lacks the driver, or a package that it needs.
        """
        stated = self._answer.packages["driver"]
        roots: dict[str, str | None] = dict.fromkeys((*stated.names, *self._pin(stated)), stated.version)
        if stated.module:
            roots[stated.module] = None
        self._check_held(stated)
        exact = self._exact("driver", stated, roots)
        self._driver_version = exact["version"]
        compiled = (name for name in exact["closure"] if COMPILED.search(name))
        driver = Driver(
            **exact,
            branch=int(self._answer.stack.branch or 0),
            module="open" if self._answer.stack.module == "open" else "proprietary",
            module_package=stated.module or next(compiled, stated.names[0]),
        )
        return driver.model_copy(update={"build": build}) if driver.compiled else driver

    def _check_held(self, stated: PackageSet) -> None:
        """Check that the indexes have the driver, if they have others of its branch.

        A driver without a version, or with a shell pattern, is not checked.

        Raises:
            Refused: they lack it.
        """
        index = self._archives(stated).with_stream(stated.stream)
        wanted = stated.version
        if wanted is None or _is_pattern(wanted):
            return
        offered = dict.fromkeys(
            index.order.upstream(each.version) for each in index.versions(stated.names[0])
        )
        branch = [each for each in offered if matches_upstream(each, wanted.split(".")[0])]
        if branch and not any(matches_upstream(each, wanted) for each in branch):
            raise Refused(
                f"no {stated.names[0]} {wanted} in {', '.join(index.origins)} [driver-in-index]",
                expected=f"of its branch {' or '.join(branch)}",
                do="check the number, or sync the mirror",
            )

    def component(self, name: str, version: str | None = None) -> Component:
        """Return a component other than driver and CUDA toolkit.

        Args:
            version: the stated version of a component that the resolver gives as a major version only (DCGM).

        Raises:
            Refused: the repository lacks it, or a package that it needs.
        """
        stated = self._answer.packages[name]
        if COMPONENT[name].with_driver and _is_pattern(stated.version):
            version = self._driver_version
        return Component(**self._exact(name, replace(stated, version=version) if version else stated))

    def cuda(self, others: Mapping[str, Answer]) -> Cuda:
        """Return the answer's toolkit as the default, with further toolkits.

        Args:
            others: version → its answer, on the same driver.

        Raises:
            Refused: as `component`.
        """
        answers = {str(self._answer.stack.cuda): self._answer, **others}
        sets = [answer.packages["cuda"] for answer in answers.values()]
        roots = {name: each.version for each in sets for name in each.names}
        exact = self._exact("cuda", sets[0], roots)
        called = {".".join(version.split(".")[:2]): version for version in answers}
        return Cuda(**exact, default=next(iter(called)), toolkits=dict(sorted(called.items())))

    def _exact(self, name: str, stated: PackageSet, roots: Mapping[str, str | None] | None = None) -> _Exact:
        """Return the fields of a component's record, with versions from the repository's index.

        The packages of the previous lock stay if they still fit and the repository has them. Packages that
        are shared with a component before keep its version; the versions and the repositories are recorded
        for later components.

        Args:
            roots: names to install, each with its version; by default the names of the set with its version.

        Raises:
            GpuprovError: as `Finder.archives`, or the repository cannot satisfy the set.
        """
        archives = self._archives(stated)
        index = archives.with_stream(self._answer.packages["driver"].stream if self._shared(stated) else None)
        roots = roots or dict.fromkeys(stated.names, stated.version)
        unversioned = [each for each in stated.unversioned if index.versions(each)]
        asked = {**roots, **dict.fromkeys(unversioned)}
        whole_archive = stated.repository in ARCHIVE_SUITES  # what it lacks does not exist
        version = self._version(name, stated)
        locked = self._previous.get(name)
        kept = locked if _stays(locked, version, asked, index) else None
        whole = closure(
            index,
            kept.closure if kept else {each: _known(index, each, text) for each, text in asked.items()},
            [family_pattern(stated.hold)],
        )
        # Docker depends on containerd, which may also be requested itself: shared packages have one version.
        whole |= {each: self._decided[each] for each in whole if each in self._decided}
        self._decided |= whole
        self.repositories |= archives.repositories
        reason, source = (kept.reason, kept.source) if kept else self._why(name)
        return _Exact(
            version=version or index.order.upstream(whole[stated.names[0]]),
            repository=stated.repository,
            stream=stated.stream,
            packages={each: whole[each] for each in asked},
            closure=whole,
            download=kept.download if kept else _size(index, whole),
            beside=[] if whole_archive else [each for each in stated.unversioned if each not in unversioned],
            hold_patterns=unattended_patterns(stated.hold),
            reason=reason,
            source=source,
        )

    def _archives(self, stated: PackageSet) -> Archives:
        """Return the repository of a set; of a distribution's archive without `main` if the rest has all its
        names.

        Raises as `Finder.archives`.
        """
        found = self._finder.archives(stated.repository, self._system, self._arch)
        if stated.repository not in ARCHIVE_SUITES or all(map(found.index.versions, stated.names)):
            return found
        return self._finder.archives(stated.repository, self._system, self._arch, main=True)

    def _shared(self, stated: PackageSet) -> bool:
        """Return whether a set comes from the driver's repository, where the driver's stream hides other
        packages.
        """
        return stated.repository == self._answer.packages["driver"].repository

    def _pin(self, stated: PackageSet) -> list[str]:
        """Return those pinning packages that the repository has; for dnf the catalog has patterns instead.
        Raises as `_archives`.
        """
        index = self._archives(stated).index
        return [name for name in stated.pin if index.versions(name)]

    def _version(self, name: str, stated: PackageSet) -> str | None:
        """Return the resolver's exact version; None if the repository decides,
        also within a driver's branch.
        """
        if COMPONENT[name].with_driver and stated.version != getattr(self._answer.stack, name):
            return None
        return None if COMPONENT[name].by_repository else getattr(self._answer.stack, name)

    def _why(self, name: str) -> tuple[str, str]:
        """Return reason and source of a component: the resolver's, or a general one if it has none."""
        kind = COMPONENT[name]
        found = [f for f in self._answer.reasons if kind.rule and f.rule.startswith(kind.rule)]
        if not found:
            follows = kind.with_driver or not kind.stated
            return (
                "the hardware needs it beside the driver" if follows else "stated",
                "fleet.yml and its profile",
            )
        return "; ".join(f.text for f in found), "; ".join(dict.fromkeys(f.source for f in found))


def _size(index: Index, packages: Mapping[str, str]) -> int:
    """Return the size in bytes of the files of packages, each at its version."""
    return sum(
        next((each.size for each in index.versions(name) if each.version == version), 0)
        for name, version in packages.items()
    )


def _is_pattern(version: str | None) -> bool:
    """Return whether a version is a shell pattern; False for None."""
    return any(letter in "*?[" for letter in version or "")


def _known(index: Index, name: str, version: str | None) -> str | None:
    """Return the version of a root for `closure`; of a shell pattern, the newest full version that matches.
    None, for any version, is returned unchanged.

    Raises:
        Refused: no version matches the pattern.
    """
    if version and _is_pattern(version):
        return index.candidate(name, like=version).version
    return version


def _stays(
    locked: Component | None, version: str | None, asked: Mapping[str, str | None], index: Index
) -> bool:
    """Return whether a locked component is the wanted one, and the repository still has all its packages.

    Args:
        version: the exact version that is wanted; None accepts any.
        asked: names to install, each with an upstream version, a shell pattern, or None (any).
    """
    if locked is None or set(locked.packages) != set(asked) or version not in (None, locked.version):
        return False
    known = all(
        any(package.version == held for package in index.versions(name))
        for name, held in locked.closure.items()
    )
    return (
        known
        and locked.packages.items() <= locked.closure.items()
        and all(_fits(index, locked.packages[name], text) for name, text in asked.items())
    )


def _fits(index: Index, full: str, stated: str | None) -> bool:
    """Return whether a full version matches an upstream version or a prefix, or a shell pattern; None
    fits all.
    """
    if stated and _is_pattern(stated):
        return fnmatch.fnmatchcase(re.sub(r"^\d+:", "", full), stated)
    return stated is None or matches_upstream(index.order.upstream(full), stated)


def family_pattern(hold: tuple[str, ...]) -> str:
    """Return one regular expression for a component's shell patterns that excludes those with `!`.

    Raises:
        InvalidInput: they are more, or have more stars, than an expression in a lock may have.
    """
    kept = "|".join(_regex(each) for each in hold if not each.startswith("!"))
    left_out = "|".join(_regex(each[1:]) for each in hold if each.startswith("!"))
    try:
        return family(f"(?!(?:{left_out})$)(?:{kept})" if left_out else f"(?:{kept})")
    except ValueError as error:
        raise InvalidInput(f"the patterns {shown(' '.join(hold))}", expected=str(error)) from None


def unattended_patterns(hold: tuple[str, ...]) -> list[str]:
    """Return expressions for unattended-upgrades, which matches them at a name's start; `!` patterns are
    left out.
    """
    return [f"{_regex(each)}$" for each in hold if not each.startswith("!")]


def _regex(shell_pattern: str) -> str:
    """Convert a shell pattern with `*` to a regular expression; all other characters are literal."""
    escaped = re.sub(r"[^\w*-]", lambda found: re.escape(found[0]), shell_pattern)
    return escaped.replace("*", ".*")
