"""Checks of drivers and other modules against a kernel that was published after them."""

from __future__ import annotations

from collections.abc import Iterator

from gpuprov.catalog import Version
from gpuprov.catalog.records import KernelDate
from gpuprov.catalog.rules import dates, issues, storage
from gpuprov.locking.resolve.case import Case, Draft
from gpuprov.locking.resolve.checks.findings import Findings, warning
from gpuprov.locking.resolve.checks.system import host_of


def kernel_after_driver(case: Case, draft: Draft) -> Findings:
    """Warn of a driver that was published before the stated kernel's series or minor release.

    Nothing if a report states the result of the build, for precompiled modules, and for a driver of the
    distribution's archive on the kernel with which the system came: the distribution changes it for that.
    """
    uname = case.request.kernel or ""
    version = issues.kernel_version(uname)
    kernel, driver = dates.kernel_day(case.catalog, uname), dates.driver_day(case.catalog, draft.driver)
    if version is None or kernel is None or driver is None or driver.day >= kernel.released:
        return
    of_distribution = draft.repository == "distribution"
    own = case.system.kernel if case.system and of_distribution else None
    if case.precompiled or (own and version.within(own)) or _reports(case, draft, draft.driver, version):
        return
    changed = " (a change of the distribution's may be in its package)" if of_distribution else ""
    text = (
        f"driver {draft.driver} is of {driver}, {kernel.title} of {kernel.released}: NVIDIA cannot have "
        f"built it against kernel {version}{changed}; {_instead(case, draft, kernel, version)}"
    )
    yield warning(case, "driver-kernel-untested", text, *driver.source, *kernel.source)


def _reports(case: Case, draft: Draft, driver: Version, kernel: Version) -> set[str]:
    """Return the results of a driver's build against a kernel that known failures state: `builds`, `fails`.

    A failure of a later release of its branch counts as one of the driver.
    """
    host = host_of(case)
    found = set()
    for issue in case.catalog.known_issues:
        if issues.fails_later(issue, driver, draft.flavour, host, kernel):
            found.add("fails")
        if issue.kind == "build" and issues.concerns(issue, driver, draft.flavour, host):
            found.add(issues.build_outcome(issue, kernel))
    return found - {"unknown"}


def _instead(case: Case, draft: Draft, kernel: KernelDate, version: Version) -> str:
    """Return what to choose instead of a driver that is older than a kernel: the next release of its branch,
    a newer branch, or an older kernel.
    """
    gone = issues.withdrawn(case.catalog.known_issues)
    for later in dates.younger(case.catalog, draft.driver, kernel.released):
        if later not in gone and "fails" not in _reports(case, draft, later, version):
            return f"the next of its branch after that is {later}"
    if any(gpu.max_driver_branch and gpu.max_driver_branch <= draft.driver.major for gpu in case.gpus):
        return "its branch has no later release and is the last for the GPU: take an older kernel"
    return "its branch has no later release: take a newer branch, or an older kernel"


def kernel_after_module(case: Case, draft: Draft) -> Findings:
    """Warn of nvidia-fs and DOCA-OFED that were published before the stated kernel, else the system's own.

    Nothing if a report states the result of the build, and for a release without a day.
    """
    kernel, named = _kernel(case)
    if kernel is None:
        return
    version = issues.kernel_version(case.request.kernel or "")
    for component, release, what in _modules(case):
        module = dates.module_day(case.catalog, component, release)
        known = component == "gds" and version is not None and _reported(case, release, version)
        if module is not None and module.day < kernel.released and not known:
            text = (
                f"{what} {release} is of {module}, {kernel.title} of {kernel.released}: its vendor cannot "
                f"have built it against {named}; take a newer release, or an older kernel"
            )
            rule = f"{component.partition('_')[0]}-kernel"
            yield warning(case, rule, text, *module.source, *kernel.source)


def _kernel(case: Case) -> tuple[KernelDate | None, str]:
    """Return the day of the stated kernel, else of the one with which the system came, and its name."""
    if case.request.kernel is not None:
        return dates.kernel_day(case.catalog, case.request.kernel), f"kernel {case.request.kernel}"
    if case.system is None:
        return None, ""
    return dates.system_day(case.catalog, case.system), f"the kernels of {case.system.title}"


def _modules(case: Case) -> Iterator[tuple[str, Version, str]]:
    """Yield component, stated release and title of each other module that is compiled on the node."""
    if case.gds and case.gds_release:
        yield "gds", case.gds_release, "nvidia-fs"
    if case.doca and case.doca_release:
        yield "doca_ofed", case.doca_release, "DOCA-OFED"


def _reported(case: Case, release: Version, kernel: Version) -> bool:
    """Return whether a report states the result of a build of nvidia-fs against a kernel."""
    known = storage.failed_builds(case.catalog.known_issues, release)
    return any(issues.build_outcome(issue, kernel) != "unknown" for issue in known)


CHECKS = (kernel_after_driver, kernel_after_module)
