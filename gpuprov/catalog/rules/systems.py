"""Rules of operating systems: the content of their repositories.

Sources: CUDA Installation Guide for Linux (distribution tables), NVIDIA Driver Installation Guide
(distributions), names of published local installers.
"""

from __future__ import annotations

from typing import Literal

from gpuprov.catalog.records import ArchiveCuda, ArchiveDriver, System
from gpuprov.catalog.version import Version

Held = Literal["yes", "unproven", "no"]
"""Seen in the repository; not seen but not excluded; documented as absent."""


def nvidia_serves(system: System, arch: str) -> bool:
    """Return whether NVIDIA's repository has a folder for the system and architecture."""
    return arch in system.arch


def cuda_held(system: System, cuda: Version) -> Held:
    """Return whether NVIDIA's repository for the system has a CUDA release.

    `cuda_first` is the oldest release seen, not proven to be the first: only a release missing from a
    complete table is "no". A bound that the record lacks excludes nothing.
    """
    if system.cuda_absent_to is not None and cuda.minor <= system.cuda_absent_to:
        return "no"
    if system.cuda_absent_from is not None and cuda.minor >= system.cuda_absent_from:
        return "no"
    if system.cuda_first is not None and cuda < system.cuda_first and not system.cuda_first.within(cuda):
        return "unproven"
    if system.cuda_last is not None and cuda.minor > system.cuda_last.minor:
        return "unproven"
    return "yes"


def driver_held(system: System, branch: int) -> Held:
    """Return whether NVIDIA's repository for the system has a driver branch.

    "no": the repository was opened after the branch had ended. "unproven": older than any branch seen there,
    or newer than the last CUDA release for that system, and in no driver guide. A bound that the record lacks
    excludes nothing.
    """
    if system.driver_absent_to is not None and branch <= system.driver_absent_to:
        return "no"
    if system.driver_first is not None and branch < system.driver_first:
        return "unproven"
    if system.driver_last is not None and branch > system.driver_last:
        return "unproven"
    return "yes"


def archive_driver(system: System, driver: Version) -> ArchiveDriver | None:
    """Return the distribution's own package of that driver, by version or by branch, or None."""
    for held in system.archive_drivers:
        if held.version == driver or (held.version is None and held.branch == driver.major):
            return held
    return None


def archive_cuda(system: System, cuda: Version) -> ArchiveCuda | None:
    """Return the distribution's own package of that CUDA release, or None."""
    return next((held for held in system.archive_cuda if held.version == cuda), None)
