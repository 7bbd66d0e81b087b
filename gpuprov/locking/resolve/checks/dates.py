"""Check of a driver against a kernel that was published after it."""

from __future__ import annotations

from gpuprov.catalog import Version
from gpuprov.catalog.records import KernelDate
from gpuprov.catalog.rules import dates, issues
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


CHECKS = (kernel_after_driver,)
