"""Checks of the system's compiler against nvcc, and against the kernel's own compiler."""

from __future__ import annotations

from gpuprov.catalog.rules import compilers, issues
from gpuprov.locking.resolve.case import Case, Draft
from gpuprov.locking.resolve.checks.findings import Findings, warning


def host(case: Case, draft: Draft) -> Findings:
    """Warn of a toolkit whose nvcc does not compile with the system's own gcc or C library.

    Nothing if one of them is not known. Programs that were compiled elsewhere run all the same.
    """
    system, cuda = case.system, draft.cuda
    limit = compilers.host_limit(case.catalog, cuda) if cuda else None
    if system is None or cuda is None or limit is None:
        return
    newer = compilers.first_with(case.catalog, system, cuda)
    instead = f", or CUDA {newer}" if newer else ""
    if compilers.gcc_too_new(limit, system):
        text = (
            f"nvcc of CUDA {cuda} compiles with gcc {limit.gcc} at most and refuses gcc {system.gcc}, which "
            f"{system.title} has: to compile there, install an older gcc and name it (nvcc -ccbin){instead}"
        )
        yield warning(case, "cuda-host-gcc", text, *limit.source, *system.source)
    if compilers.glibc_too_new(limit, system):
        text = (
            f"the headers of CUDA {cuda} contradict those of glibc {system.glibc}, which {system.title} has "
            f"(cospi, rsqrt and others): to compile, take a container with an older system{instead}"
        )
        yield warning(case, "cuda-host-glibc", text, *limit.source, *system.source)


def kernel(case: Case, draft: Draft) -> Findings:
    """Warn of a stated kernel that was compiled with another gcc than the system's own.

    NVIDIA's modules are compiled with the kernel's compiler: precompiled ones need none.
    """
    version = issues.kernel_version(case.request.kernel or "")
    if case.system is None or version is None or case.precompiled:
        return
    row = compilers.kernel_compiler(case.system, version)
    if row is not None:
        text = (
            f"kernel {version}: {case.system.title} compiles most kernels from {row.kernels_from} on with "
            f"gcc {row.gcc}, and has gcc {case.system.gcc}: modules of such a kernel do not build without "
            f"gcc {row.gcc}, which {row.brought_by} brings, and which an image or a runfile may lack"
        )
        yield warning(case, "kernel-compiler", text, *row.source)


CHECKS = (host, kernel)
