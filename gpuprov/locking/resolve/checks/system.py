"""Checks of operating system, architecture and repository."""

from __future__ import annotations

from gpuprov.catalog.records import KnownIssue
from gpuprov.catalog.rules import issues, systems
from gpuprov.locking.resolve.case import Case, Draft
from gpuprov.locking.resolve.checks.findings import Findings, reason, violation, warning
from gpuprov.locking.resolve.packages import driver_rule


def served(case: Case, draft: Draft) -> Findings:
    """Check that a repository of the catalog serves the system, and that its architecture is x86_64 or
    aarch64; if not, a violation.
    """
    system = case.system
    if system is None:
        text = f"no repository of the catalog serves {case.request.os}"
        yield violation(case, "os-served", text, "dig-intro-610", "cig-13.0u1")
    elif case.arch not in ("x86_64", "aarch64"):
        yield violation(
            case, "arch-served", f"no repository serves {system.title} on {case.arch}", *system.source
        )


def superchip(case: Case, draft: Draft) -> Findings:
    """Check that the host of a Grace superchip has an Arm CPU; another one is a violation."""
    for gpu in case.gpus:
        if gpu.superchip and case.arch != "aarch64":
            text = f"{gpu.id} is a superchip with an Arm CPU: its host is aarch64, not {case.arch}"
            yield violation(case, "superchip-arch", text, *gpu.source)


def repository(case: Case, draft: Draft) -> Findings:
    """Check that the driver is in the repository it must come from; nothing for an unknown system.

    A driver that is not there is a violation, one that may be there a warning.
    """
    if case.system is None:
        return
    if draft.repository == "distribution":
        yield from _in_archive(case, draft)
    elif systems.nvidia_serves(case.system, case.arch):
        yield from _at_nvidia(case, draft)
    else:
        text = (
            f"NVIDIA's repository for {case.system.title} serves {' and '.join(case.system.arch)}, "
            f"not {case.arch}"
        )
        yield violation(case, "arch-served", text, *case.system.source)


def _in_archive(case: Case, draft: Draft) -> Findings:
    """Yield the finding about the driver in the distribution's archive: a reason, or a violation if it is not
    there, or not with the chosen modules.
    """
    system = case.system
    assert system is not None  # noqa: S101
    held = systems.archive_driver(system, draft.driver)
    if held is None:
        names = ", ".join(str(d.version or d.branch) for d in system.archive_drivers)
        text = (
            f"the archive of {system.title} holds "
            f"{f'drivers {names}, not {draft.driver}' if names else 'no driver'}"
        )
        yield violation(case, "driver-in-archive", text, *system.source)
    elif draft.flavour and draft.flavour not in held.flavours:
        text = f"the archive of {system.title} has no {draft.flavour} modules of driver {draft.driver}"
        yield violation(case, "driver-in-archive", text, *held.source)
    else:
        what = draft.driver if held.version else f"branch {held.branch}, in the version that is there,"
        text = f"driver {what} comes from the archive of {system.title} ({held.repository})"
        yield reason(case, "driver-in-archive", text, *held.source)


def _at_nvidia(case: Case, draft: Draft) -> Findings:
    """Yield the finding about the branch in NVIDIA's repository for the system: a violation if it lacks the
    branch, a warning if that is not known; nothing if it was seen there.
    """
    system, branch = case.system, draft.driver.major
    assert system is not None  # noqa: S101
    held = systems.driver_held(system, branch)
    if held == "no":
        text = (
            f"NVIDIA's repository for {system.title} is younger than driver branch {branch} and does "
            "not hold it"
        )
        yield violation(case, "driver-on-os", text, *system.source)
    elif held == "unproven":
        text = (
            f"driver branch {branch} is not known to be in NVIDIA's repository for {system.title}: "
            "`gpuprov lock` looks in its index"
        )
        yield warning(case, "driver-on-os", text, *system.source)


def host_of(case: Case) -> issues.Host:
    """Return the case's machine as known failures distinguish them."""
    return issues.Host(case.system.id if case.system else "", case.arch, case.gpus)


def known_failures(case: Case, draft: Draft) -> Findings:
    """Yield a finding for each known failure of this driver on this system and these GPUs.

    A withdrawn release is a violation, a required firmware a reason. Precompiled modules need no build.
    """
    host = host_of(case)
    for issue in case.catalog.known_issues:
        if not issues.concerns(issue, draft.driver, draft.flavour, host):
            continue
        if issue.kind == "withdrawn":
            text = f"driver {draft.driver} was withdrawn ({issue.condition}): {issue.effect}; {issue.remedy}"
            yield violation(case, issue.id, text, *issue.source)
        elif issue.kind == "firmware":
            text = f"driver {draft.driver}, {issue.condition}: {issue.effect}; {issue.remedy} ({issue.check})"
            yield reason(case, issue.id, text, *issue.source)
        elif not case.precompiled:
            yield from failed_build(case, issue, f"driver {draft.driver}")


def failures_of_later_releases(case: Case, draft: Draft) -> Findings:
    """Warn of a driver untried on the stated kernel on which a later release of its branch fails."""
    kernel = issues.kernel_version(case.request.kernel or "")
    if kernel is None or case.precompiled:
        return
    host = host_of(case)
    for issue in case.catalog.known_issues:
        later = issues.fails_later(issue, draft.driver, draft.flavour, host, kernel)
        if later is not None:
            text = (
                f"driver {draft.driver} on kernel {kernel}: not tried; {later}, a later release of its "
                f"branch, does not build against it: {issue.effect}; {issue.remedy}"
            )
            yield warning(case, issue.id, text, *issue.source)


def failed_build(case: Case, issue: KnownIssue, what: str) -> Findings:
    """Yield the finding about a build that fails against some kernels.

    A failure against the stated kernel is a violation; an untried or unstated kernel a warning; a success a
    reason. If a kernel breaks it on all systems, an unstated one is a reason, and an older one nothing.

    Args:
        what: the module with its version, for the sentence.
    """
    kernel = issues.kernel_version(case.request.kernel or "")
    if kernel is None and not issue.os:
        text = f"{what} does not build on {issue.condition}: state the kernel to check it"
        yield reason(case, issue.id, text, *issue.source)
    elif kernel is None:
        text = f"{what} with {issue.condition}: {issue.effect}; {issue.remedy}"
        yield warning(case, issue.id, text, *issue.source)
    elif issues.is_before(issue, kernel):
        return
    elif (outcome := issues.build_outcome(issue, kernel)) == "fails":
        text = f"{what} does not build against kernel {kernel}: {issue.effect}; {issue.remedy}"
        yield violation(case, issue.id, text, *issue.source)
    elif outcome == "builds":
        yield reason(case, issue.id, f"{what} builds against kernel {kernel}", *issue.source)
    else:
        text = f"{what} on kernel {kernel}: not tried; {issue.condition}: {issue.effect}"
        yield warning(case, issue.id, text, *issue.source)


def precompiled(case: Case, draft: Draft) -> Findings:
    """Check that precompiled modules exist if the module must not be compiled on the node; if not, a
    violation.
    """
    if not case.precompiled or case.system is None:
        return
    rule = driver_rule(case, draft)
    if rule is None:
        place = "its own archive" if draft.repository == "distribution" else "NVIDIA's repository"
        text = f"no precompiled modules of driver {draft.driver} are known for {case.system.title} in {place}"
        yield violation(case, "module-precompiled", text, "ubuntu-archive")
    else:
        text = "modules as the distribution compiled and signed them"
        yield reason(case, "module-precompiled", text, *rule.source)


CHECKS = (served, superchip, repository, precompiled, known_failures, failures_of_later_releases)
