"""Rules of cuDNN and NCCL: existing builds, and the GPUs that they support.

Sources: cuDNN Support Matrix; wheel listings of nvidia-cudnn-cuNN and nvidia-nccl-cuNN; NVIDIA/nccl
makefiles.
"""

from __future__ import annotations

from gpuprov.catalog.catalog import Catalog
from gpuprov.catalog.records import BuildRange, GpuModel, Nccl, System
from gpuprov.catalog.version import Version


def _covers(row: BuildRange, release: Version) -> bool:
    """Return whether a release is in a range; a bound with fewer digits includes all it names (9.10.2:
    9.10.2.21).
    """
    below = row.last is None or release <= row.last or release.within(row.last)
    return release >= row.first and below


def _build_exists(rows: tuple[BuildRange, ...], release: Version, cuda_major: int) -> bool | None:
    """Return whether a range of the CUDA major covers the release; None if the major has no range."""
    spans = [row for row in rows if row.cuda_major == cuda_major]
    return any(_covers(row, release) for row in spans) if spans else None


def cudnn_build_exists(catalog: Catalog, cudnn: Version, cuda_major: int) -> bool | None:
    """Return whether cuDNN is built for a CUDA major; None for an unknown major.

    11 up to 9.10.2, 12 from 8.8.0, 13 from 9.12.0. Source: cuDNN Support Matrix and the wheels' version
    listings.
    """
    return _build_exists(catalog.tables["cudnn.builds"], cudnn, cuda_major)


def cudnn_min_driver(catalog: Catalog, cudnn: Version, cuda_major: int) -> Version | None:
    """Return the driver floor of a cuDNN release built for a CUDA major.

    None up to 8.2, whose matrix requires only the toolkit's own branch, and for a release without such a
    build.
    Source: cuDNN Support Matrix.
    """
    rows = (row for row in catalog.tables["cudnn.builds"] if row.cuda_major == cuda_major)
    return next((row.min_driver for row in rows if _covers(row, cudnn)), None)


def cudnn_gpu_ok(catalog: Catalog, cudnn: Version, gpu: GpuModel) -> bool:
    """Return whether cuDNN has code for the GPU: after 9.10.2 nothing below compute capability 7.5.

    Source: cuDNN Support Matrix 9.10.2 (Maxwell to Volta deprecated) and 9.17.0.
    """
    for floor in catalog.tables["cudnn.capability_floors"]:
        if (
            cudnn > floor.after
            and not cudnn.within(floor.after)
            and gpu.compute_capability < floor.min_compute_capability
        ):
            return False
    return True


def cudnn_release_floor(catalog: Catalog, cudnn: Version) -> Version | None:
    """Return the lowest compute capability in the support matrix of that release; None if it was not read."""
    record = catalog.cudnn_by_version.get(cudnn)
    return record.min_compute_capability if record else None


def nccl_build_exists(catalog: Catalog, nccl: Version, cuda_major: int) -> bool | None:
    """Return whether NCCL is built for a CUDA major; None for an unknown major.

    11 up to 2.21.5, 12 from 2.16.2, 13 from 2.27.7. Source: version listings of the wheels; packages follow
    the same split.
    """
    return _build_exists(catalog.tables["nccl.builds"], nccl, cuda_major)


def nccl_builds(nccl: Nccl, system: System | None) -> tuple[Version, ...]:
    """Return the CUDA releases for which builds of an NCCL release were seen, without those that a report
    misses in the repository of the system; empty if none was.

    Source: indexes of /compute/redist/nccl, which has the builds of the packages; containers and build files.
    """
    absent = nccl.builds_absent.get(system.id, ()) if system else ()
    return tuple(build for build in nccl.cuda_builds_seen if build not in absent)


def nccl_gpu_ok(catalog: Catalog, nccl: Version, cuda_major: int, gpu: GpuModel) -> bool:
    """Return whether builds of NCCL have code for the GPU: CUDA 12 from 2.28 start at 6.0, CUDA 13 at 7.5.

    Source: NVIDIA/nccl makefiles/common.mk.
    """
    for floor in catalog.tables["nccl.code_floors"]:
        if floor.cuda_major == cuda_major and nccl >= floor.since:
            return not gpu.compute_capability < floor.min_compute_capability
    return True


def nccl_needs_newer_driver(build: Version, native_cuda: Version) -> bool:
    """Return whether an NCCL build's CUDA minor is newer than the driver's.

    The build then needs code for the GPU itself (its PTX cannot be compiled), or a forward-compatibility
    package.
    Source: NCCL package notes.
    """
    return build > native_cuda


LAST_CUDNN_WITHOUT_BLACKWELL = Version("9.5")
"""The newest cuDNN minor that was read whose support matrix ends at compute capability 9.0."""
