"""Rules of known failures: records in the catalog, each with its source."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gpuprov.catalog.records import Flavour, GpuModel, KernelSeries, KnownIssue
from gpuprov.catalog.version import Version, version

Build = Literal["builds", "fails", "unknown"]
KERNEL = re.compile(
    r"([0-9]{1,6}(?:\.[0-9]{1,6}){1,6})"
    r"(?:-([0-9]{1,6}(?:\.[0-9]{1,6}){0,6})(?:\.el[0-9]|(?:-cloud|-rt)?-(?:amd64|arm64)\Z))?",
    re.ASCII,
)
"""A kernel's upstream version and, of RHEL and Debian, the number of its build."""


def kernel_version(uname: str) -> Version | None:
    """Return the upstream version of a kernel: 6.12.107 of `6.12.107+deb13-amd64`; None if it does not begin
    with one.

    RHEL and Debian keep the upstream version and take changes of newer kernels into their builds, so the
    build counts too: 5.14.0.687.12.1 of `5.14.0-687.12.1.el9_8.x86_64`, 6.1.0.18 of `6.1.0-18-cloud-amd64`.
    """
    match = KERNEL.match(uname)
    return version(".".join(filter(None, match.groups()))) if match else None


@dataclass(frozen=True, slots=True)
class Host:
    """A machine as known failures distinguish them: system, processor and GPUs."""

    system: str
    arch: str
    gpus: tuple[GpuModel, ...] = ()


def concerns(issue: KnownIssue, driver: Version, flavour: Flavour | None, host: Host) -> bool:
    """Return whether an issue concerns this driver, flavour and host; an empty field concerns all."""
    of_driver = driver in issue.drivers or driver.major in issue.branches
    of_flavour = issue.module is None or flavour is None or issue.module == flavour
    of_system = not issue.os or host.system in issue.os
    of_arch = issue.arch is None or issue.arch == host.arch
    of_gpus = not issue.architectures or any(gpu.architecture in issue.architectures for gpu in host.gpus)
    return of_driver and of_flavour and of_system and of_arch and of_gpus


def fails_later(
    issue: KnownIssue, driver: Version, flavour: Flavour | None, host: Host, kernel: Version
) -> Version | None:
    """Return the later release of a driver's branch that is known not to build against a kernel, or None.

    A change of the kernel that a release does not follow, earlier ones of its branch do not follow either.
    """
    later = [each for each in issue.drivers if each.major == driver.major and each > driver]
    if issue.kind != "build" or driver in issue.drivers or not later:
        return None
    if not concerns(issue, later[0], flavour, host) or build_outcome(issue, kernel) != "fails":
        return None
    return min(later)


def withdrawn(issues: Iterable[KnownIssue]) -> frozenset[Version]:
    """Return the drivers that their vendor withdrew."""
    return frozenset(each for issue in issues if issue.kind == "withdrawn" for each in issue.drivers)


def build_outcome(issue: KnownIssue, kernel: Version) -> Build:
    """Return the recorded result of a build against a kernel.

    Unknown are a series without a record, and the gap between the last release that builds and the first that
    fails.
    """
    for series in issue.kernels:
        if kernel.within(series.series):
            return _in_series(series, kernel)
    return "unknown"


def is_before(issue: KnownIssue, kernel: Version) -> bool:
    """Return whether a kernel is older than all that fail by an issue of the kernel itself, on any system.

    The issue does not concern such a kernel, because the change came later.
    """
    first = min((each.fails_from for each in issue.kernels if each.fails_from is not None), default=None)
    return not issue.os and first is not None and kernel < first


def _in_series(series: KernelSeries, kernel: Version) -> Build:
    """Return the recorded result of a build against a kernel of the series; `unknown` between the two
    bounds.
    """
    if series.fails_from is not None and kernel >= series.fails_from:
        return "fails"
    if series.builds_to is not None and kernel <= series.builds_to:
        return "builds"
    return "unknown"
