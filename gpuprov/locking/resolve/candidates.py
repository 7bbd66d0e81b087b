"""Drivers to try, best first: the stated one, or the policy's order over the repositories' drivers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from gpuprov.catalog import Version
from gpuprov.catalog.records import Branch
from gpuprov.catalog.rules.driver import end_of_life, gpu_driver_ok
from gpuprov.catalog.rules.issues import withdrawn
from gpuprov.catalog.rules.security import affected
from gpuprov.catalog.rules.systems import archive_driver, driver_held, nvidia_serves
from gpuprov.errors import InvalidInput
from gpuprov.locking.resolve.case import Case, Draft

REPOSITORIES = ("nvidia", "distribution")


def candidates(case: Case) -> list[Draft]:
    """Return drivers to try, best first; at least one.

    A stated driver, or the version of a stated fabric manager, is the only one. Otherwise branches that do
    not support a GPU of the host are left out, unless none would remain, precompiled modules are searched in
    the distribution's archive, and drivers without a known security bulletin come before the others.

    Raises:
        InvalidInput: an unknown repository, or a branch that is not in the catalog, so that its versions are
            unknown.
    """
    repository = (case.request.repository or "").lower() or None
    if repository not in (None, *REPOSITORIES):
        raise InvalidInput(f"repository {case.request.repository!r}", expected=" or ".join(REPOSITORIES))
    if case.precompiled and repository is None:
        repository = "distribution"  # NVIDIA's repositories for apt have no precompiled modules
    if case.driver is not None:
        return [_stated(case, case.driver, repository)]
    manager = case.stated.get("fabricmanager")
    if manager is not None and len(manager.parts) > 1:
        return [_stated(case, manager, repository)]
    every = list(_open(case, repository))
    fitting = [
        draft for draft in every if all(gpu_driver_ok(gpu, draft.driver) is not False for gpu in case.gpus)
    ]
    return _fixed_first(case, fitting or every)


def _fixed_first(case: Case, drafts: list[Draft]) -> list[Draft]:
    """Return drafts in the given order, those that a security bulletin concerns after the others."""
    fixed: list[Draft] = []
    exposed: list[Draft] = []
    for draft in drafts:
        if affected(case.catalog, "driver", draft.driver):
            exposed.append(draft)
        else:
            draft.passed_over = tuple(dict.fromkeys(each.driver for each in exposed))
            fixed.append(draft)
    return [*fixed, *exposed]


def _stated(case: Case, driver: Version, repository: str | None) -> Draft:
    """Return the draft for a stated driver; a branch or the beginning of a version becomes the newest known
    version.

    Raises:
        InvalidInput: a branch that is not in the catalog.
    """
    if len(driver.parts) == 1:
        driver = _newest_of(case, driver, repository)
    elif driver not in case.catalog.known_drivers:
        known = [each for each in case.catalog.known_drivers if each.within(driver)]
        driver = max(known, default=driver)
    return Draft(driver, case.catalog.branches.get(driver.major), repository or _home(case, driver))


def _newest_of(case: Case, driver: Version, repository: str | None) -> Version:
    """Return the version for a bare branch: the fabric manager's, the archive's, or the newest known; of a
    branch without a record the newest one whose day is known.

    Raises:
        InvalidInput: the branch is not in the catalog.
    """
    manager = case.stated.get("fabricmanager")
    if manager is not None and len(manager.parts) > 1 and manager.major == driver.major:
        return manager
    if case.system and (repository or _home(case, driver)) == "distribution":
        held = [d.version for d in case.system.archive_drivers if d.version and d.version.within(driver)]
        if held:
            return max(held)
    if driver.major not in case.catalog.branches:
        dated = case.catalog.driver_dates
        if driver.major in dated:
            return max(dated[driver.major].released)
        known = ", ".join(map(str, sorted({*case.catalog.branches, *dated})))
        raise InvalidInput(
            f"driver branch {driver} is not in the catalog", expected=f"one of {known}, or a full version"
        )
    return _latest(case, case.catalog.branches[driver.major])


def _latest(case: Case, branch: Branch) -> Version:
    """Return the newest known version of a branch that was not withdrawn; the newest if all were."""
    gone = withdrawn(case.catalog.known_issues)
    if branch.latest_known not in gone:
        return branch.latest_known
    return max((each for each in branch.known_versions if each not in gone), default=branch.latest_known)


def _home(case: Case, driver: Version) -> str:
    """Return the repository of a driver if it is not stated.

    `nvidia`, unless only the distribution's archive is known to have the driver: then `distribution`.
    """
    if case.system is None:
        return "nvidia"
    archived = archive_driver(case.system, driver) or any(
        held.version and held.version.within(driver) for held in case.system.archive_drivers
    )
    return "distribution" if archived and not _proven(case, driver.major) else "nvidia"


def _proven(case: Case, branch: int) -> bool:
    """Return whether the catalog records that NVIDIA's repository for the machine has a branch.

    False for an unknown system, and for an architecture that the repository does not serve.
    """
    if case.system is None or not nvidia_serves(case.system, case.arch):
        return False
    record = case.catalog.branches.get(branch)
    archives_only = record is not None and record.archives_only
    return not archives_only and driver_held(case.system, branch) == "yes"


def _open(case: Case, repository: str | None) -> Iterable[Draft]:
    """Return drafts, best first: branches seen in NVIDIA's repository, the archive's, branches not seen.

    With a stated repository, all drafts are of that repository.
    """
    order = _branch_order(case)
    served = [branch for branch in order if not branch.archives_only]
    seen = [branch for branch in served if _proven(case, branch.branch)]
    unseen = [branch for branch in served if branch not in seen]
    archive = list(_in_archive(case, order))
    if repository == "nvidia":
        return (_at_nvidia(case, branch) for branch in served)
    if repository == "distribution":
        return archive or (replace(_at_nvidia(case, branch), repository="distribution") for branch in served)
    proven, unproven = ([_at_nvidia(case, branch) for branch in each] for each in (seen, unseen))
    return chain(proven, archive, unproven)


def _at_nvidia(case: Case, branch: Branch) -> Draft:
    """Return a draft of the newest known version of a branch, from NVIDIA's repository."""
    return Draft(_latest(case, branch), branch, "nvidia")


def _branch_order(case: Case) -> list[Branch]:
    """Return the branches that the policy allows, in its order; those too new for the system's repository
    come last.
    """
    order: dict[int, Branch] = {}
    newest_first = list(case.catalog.branches.values())[::-1]
    for tier in case.policy.tiers:
        for branch in newest_first:
            alive = not tier.supported or not end_of_life(branch, case.catalog.as_of)
            if branch.type in tier.types and alive:
                order.setdefault(branch.branch, branch)
    last = case.system.driver_last if case.system else None
    return sorted(order.values(), key=lambda branch: last is not None and branch.branch > last)


def _in_archive(case: Case, order: list[Branch]) -> Iterator[Draft]:
    """Yield drafts of the distribution's own drivers, in the order of their branches and newest first.

    A driver that is selected by its name only is left out; one without a known version is taken as the newest
    of its branch.
    """
    held = (
        [driver for driver in case.system.archive_drivers if not driver.by_name_only] if case.system else []
    )
    for branch in order:
        exact = [d.version for d in held if d.version and d.version.major == branch.branch]
        for driver in sorted(exact, reverse=True) or [
            branch.latest_known for d in held if d.branch == branch.branch
        ]:
            yield Draft(driver, branch, "distribution")
