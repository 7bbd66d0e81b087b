"""Rules of compilers: what nvcc compiles with on a system, and what a system's kernels were compiled with.

Sources: CUDA Installation Guide for Linux, "Host Compiler Support Policy"; the distributions' own releases.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuprov.catalog.catalog import Catalog
from gpuprov.catalog.records import HostLimit, KernelCompiler, System
from gpuprov.catalog.rules.systems import cuda_held
from gpuprov.catalog.version import Version


def host_limit(catalog: Catalog, cuda: Version) -> HostLimit | None:
    """Return the newest compiler and C library for a toolkit's nvcc; None if they were not read."""
    rows: Iterable[HostLimit] = catalog.tables["cuda.host_limits"]
    return next((row for row in rows if row.first <= cuda and _until(cuda, row.last)), None)


def _until(found: Version, last: Version) -> bool:
    """Return whether a version is not newer than a bound; one with fewer digits includes all it names."""
    return found <= last or found.within(last)


def gcc_too_new(limit: HostLimit, system: System) -> bool:
    """Return whether nvcc refuses the system's own gcc; False if that is not known."""
    return system.gcc is not None and not _until(system.gcc, limit.gcc)


def glibc_too_new(limit: HostLimit, system: System) -> bool:
    """Return whether the toolkit's headers contradict those of the system's glibc; False if unknown."""
    return limit.glibc is not None and system.glibc is not None and not _until(system.glibc, limit.glibc)


def first_with(catalog: Catalog, system: System, after: Version) -> Version | None:
    """Return the first later CUDA release that is known to compile with the system's own gcc and glibc."""
    rows: Iterable[HostLimit] = catalog.tables["cuda.host_limits"]
    fit = (
        row.first
        for row in rows
        if not gcc_too_new(row, system)
        and (system.glibc is None or (row.glibc is not None and not glibc_too_new(row, system)))
        and cuda_held(system, row.first) != "no"
    )
    return min((first for first in fit if first > after), default=None)


def kernel_compiler(system: System, kernel: Version) -> KernelCompiler | None:
    """Return the compiler of a kernel that was compiled with another one than the system's own, or None."""
    row = system.kernel_compiler
    return row if row is not None and kernel >= row.kernels_from else None
