"""Rules of drivers, CUDA and GPUs: compatible combinations on Linux.

Sources: CUDA Toolkit Release Notes (driver tables), CUDA Compatibility guide (minor-version and forward
compatibility), NVIDIA Data Center Drivers: CUDA Toolkit, Driver, and Architecture Matrix.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from gpuprov.catalog.catalog import Catalog
from gpuprov.catalog.records import Branch, GpuModel, Toolkit
from gpuprov.catalog.version import Version

Way = Literal["native", "minor", "forward", "forward?", "former", "unknown", "no"]
"""How a toolkit runs on a driver: fully, by minor-version compatibility, by a forward-compatibility package
(with ? if the vendor does not say whether the GPU is one of those selected), by such a package on a branch
that the vendor no longer lists, unknown, or not at all.
"""

HOPPER = Version("9.0")
FIRST_MINOR_COMPAT = 11
FIRST_COMPAT_PACKAGE = 10
"""The first CUDA major with a compat package, which goes on data-centre GPUs alone."""


def native(driver: Version, toolkit: Toolkit) -> bool:
    """Return whether everything in the toolkit works: the driver is at least the one in the release notes.

    Where the notes give a branch only (13.4 and later, some patches) the branch decides. A newer driver
    runs any older toolkit. Source: CUDA Toolkit Release Notes, "CUDA Toolkit and Corresponding Driver
    Versions".
    """
    paired = toolkit.driver_corresponding_linux_x86_64
    return driver >= paired if paired else driver.major >= toolkit.driver_branch


def min_driver(catalog: Catalog, cuda_major: int) -> Version | None:
    """Return the driver floor of a CUDA major under minor-version compatibility; None if not in the catalog.

    Source: CUDA Compatibility guide, "Minor Version Compatibility".
    """
    row = catalog.minor_compat.get(cuda_major)
    return row.min_driver_linux if row else None


def minor_compat(catalog: Catalog, driver: Version, cuda_major: int) -> bool:
    """Return whether a driver runs a CUDA major by minor-version compatibility.

    Limits: no PTX newer than the driver (error 222), no feature that needs a newer one (error 801). A major
    without a floor in the catalog is not compatible by this rule. Source: as `min_driver`.
    """
    floor = min_driver(catalog, cuda_major)
    return floor is not None and driver >= floor


def forward_compat_gpu(gpu: GpuModel) -> bool | None:
    """Return whether the vendor supports compat packages on that GPU.

    None for workstation boards: "selected NGC-Ready RTX boards", which the catalog does not list.
    Source: CUDA Compatibility guide, "Forward Compatibility".
    """
    return {"yes": True, "selected": None, "no": False}[gpu.forward_compat]


def forward_compat_base(catalog: Catalog, branch: int, cuda: Version) -> bool:
    """Return whether `cuda-compat-X-Y` works on a host with that driver branch.

    New-feature branches are excluded although the printed matrix has columns for them: the text of the same
    page excludes such hosts. A branch missing from the matrix is out of support. Source: as
    `forward_compat_gpu`.
    """
    row = catalog.forward_compat.get(cuda.minor)
    known = catalog.branches.get(branch)
    return row is not None and branch in row.base_branches and (known is None or known.type != "NFB")


def former_compat_base(catalog: Catalog, driver: Version, cuda: Version) -> bool:
    """Return whether the vendor named the driver as a base of `cuda-compat-X-Y` before its branch ended.

    Source: "Driver Requirements" in the release notes of NVIDIA's containers, each for one CUDA release and
    with the oldest release of each branch; "NVIDIA CUDA and Drivers Support" of March 2021.
    """
    row = catalog.forward_compat.get(cuda.minor)
    return row is not None and any(
        driver.major == oldest.major and driver >= oldest for oldest in row.former_bases
    )


def way(
    catalog: Catalog, driver: Version, cuda: Version, toolkit: Toolkit | None, gpus: Iterable[GpuModel]
) -> Way:
    """Return how CUDA `cuda` (its release `toolkit`, if the catalog has it) runs on a host's driver.

    `unknown`: the catalog has no driver floor of that CUDA major, or before CUDA 11 only a compat package may
    help, of which no list of drivers was read. Whether the GPUs themselves are supported is decided by
    `gpu_driver_ok` and `gpu_cuda_ok`.
    """
    if _natively(catalog, driver, cuda, toolkit):
        return "native"
    if minor_compat(catalog, driver, cuda.major):
        return "minor"
    gpu_says = {forward_compat_gpu(gpu) for gpu in gpus}
    if False not in gpu_says:
        if forward_compat_base(catalog, driver.major, cuda):
            return "forward?" if None in gpu_says else "forward"
        if former_compat_base(catalog, driver, cuda):
            return "former"
    if too_old(catalog, driver, cuda) and (cuda.major < FIRST_COMPAT_PACKAGE or False in gpu_says):
        return "no"
    if min_driver(catalog, cuda.major) is None and not _major_is_newer(catalog, driver.major, cuda.major):
        return "unknown"
    return "no"


def _natively(catalog: Catalog, driver: Version, cuda: Version, toolkit: Toolkit | None) -> bool:
    """Return whether CUDA `cuda` runs natively: by its release, its lowest driver, or the branch."""
    if toolkit and native(driver, toolkit):
        return True
    if lowest := early_driver(catalog, cuda):
        return driver >= lowest
    own = catalog.branches.get(driver.major)
    return not toolkit and own is not None and cuda.minor <= own.native_cuda


def early_driver(catalog: Catalog, cuda: Version) -> Version | None:
    """Return the lowest driver of a CUDA release before 11; None for a later or unknown one.

    Source: CUDA Toolkit Release Notes, "CUDA Toolkit and Minimum Compatible Driver Versions".
    """
    rows = [row for row in catalog.tables["cuda.early_drivers"] if cuda.within(row.cuda)]
    return max(rows, key=lambda row: row.cuda).min_driver if rows else None


def too_old(catalog: Catalog, driver: Version, cuda: Version) -> bool:
    """Return whether a driver runs no release of a CUDA minor before 11 without a compat package.

    It is older than the lowest driver of all its releases, and than the one in their runfiles. False for a
    later or unknown one. Source: as `early_driver`.
    """
    rows = [row for row in catalog.tables["cuda.early_drivers"] if row.cuda.minor == cuda.minor]
    return bool(rows) and all(driver < (row.bundled_driver or row.min_driver) for row in rows)


def before_minor_compat(catalog: Catalog, driver: Version, branch: Branch | None, cuda: Version) -> bool:
    """Return whether a driver is older than a CUDA release for which there is no minor-version compatibility.

    It began with CUDA 11. False if neither the release's lowest driver nor the branch is known. Source: as
    `minor_compat`.
    """
    if lowest := early_driver(catalog, cuda):
        return driver < lowest
    return branch is not None and cuda.major < FIRST_MINOR_COMPAT and cuda.minor > branch.native_cuda


def _major_is_newer(catalog: Catalog, branch: int, cuda_major: int) -> bool:
    """Return whether a branch needs forward compatibility for a CUDA major; False for an unknown branch."""
    known = catalog.branches.get(branch)
    return known is not None and cuda_major > known.max_cuda_major_without_forward_compat


def gpu_driver_ok(gpu: GpuModel, driver: Version) -> bool | None:
    """Return whether the driver supports the GPU; None: older than the lists that contain it, but not
    excluded.

    `min_driver_branch` comes from device lists with gaps: below it a GPU is unproven, unless the branch is
    older than the CUDA release that introduced the architecture. For boards of Hopper and later with their
    own record it agrees with the release history, and excludes older branches. Sources: Architecture Matrix,
    README device tables of the open kernel modules, nvidia-detect.
    """
    if gpu.max_driver_branch is not None and driver.major > gpu.max_driver_branch:
        return False
    if gpu.min_driver is not None and driver < gpu.min_driver:
        return False
    if driver.major >= gpu.min_driver_branch:
        return True
    return False if gpu.compute_capability >= HOPPER and not gpu.listed_only else None


def unlisted(gpu: GpuModel, driver: Version) -> str | None:
    """Return the device id that a list of the driver's branch, of this release or a newer one, does not have.

    None if no list shows it: the driver lists one of the GPU's device ids, or only lists of newer releases
    were read. Source: as `gpu_driver_ok`.
    """
    if any(release <= driver for release in gpu.first_listed.values()):
        return None
    gaps = (device for device, release in gpu.not_listed.items() if release.major == driver.major)
    return next((device for device in gaps if driver <= gpu.not_listed[device]), None)


def oldest_driver(gpu: GpuModel) -> str:
    """Return which driver is the oldest for a GPU: as the vendor states, between two lists of devices, or
    unknown.

    Sources: the GPU's own. A list is an upper bound: the vendor's lists have gaps.
    """
    if gpu.min_driver:
        return f"{gpu.min_driver}, as the vendor states"
    stated = f"{gpu.advised_driver} on its usual board, as the vendor states; " if gpu.advised_driver else ""
    if not gpu.first_listed:
        return f"{stated}unknown: no list of devices has it"
    device = min(gpu.first_listed, key=lambda each: gpu.first_listed[each])
    first, without = gpu.first_listed[device], gpu.not_listed.get(device)
    if without:
        return f"{stated}listed from {first} on, not yet by {without}; the vendor states none"
    return f"{stated}unknown: {first} lists it, and no older list of its branch was read"


def predates_architecture(branch: Branch, gpu: GpuModel) -> bool:
    """Return whether the branch's own CUDA is older than the first CUDA for the GPU's compute capability.

    Source: Architecture Matrix (first CUDA by compute capability, native CUDA by branch).
    """
    return gpu.first_cuda is not None and branch.native_cuda < gpu.first_cuda.minor


def gpu_cuda_ok(gpu: GpuModel, cuda: Version) -> bool:
    """Return whether a CUDA release supports the GPU: between the first and last CUDA of its architecture.

    Source: Architecture Matrix.
    """
    newest = gpu.last_cuda is None or cuda.minor <= gpu.last_cuda
    return newest and (gpu.first_cuda is None or cuda.minor >= gpu.first_cuda)


def older_binaries(catalog: Catalog, gpu: GpuModel, cuda: Version) -> Version | None:
    """Return the compute capability whose binaries from a CUDA release run on a GPU that it does not know.

    It is of the same major and older, the newest if several are. None if there is none.

    Source: NVIDIA's Blackwell Compatibility Guide: binaries run on GPUs of the same major compute capability,
    and the same or a higher minor.
    """
    if gpu.first_cuda is None or cuda.minor >= gpu.first_cuda:
        return None
    own = gpu.compute_capability
    return max(
        (
            row.compute_capability
            for row in catalog.tables["cuda.architectures"]
            if row.compute_capability.major == own.major
            and row.compute_capability < own
            and (row.first_cuda is None or row.first_cuda <= cuda.minor)
            and (row.last_cuda is None or cuda.minor <= row.last_cuda)
        ),
        default=None,
    )


def newest_ptx(catalog: Catalog, gpu: GpuModel, cuda: Version) -> Version | None:
    """Return the newest compute capability for which a CUDA release writes PTX, if it is older than the GPU.

    None if the release knows the GPU or has dropped it. The driver compiles such PTX for the GPU.

    Source: as `older_binaries`: programs of CUDA 12.7 and older run on Blackwell if they contain PTX.
    """
    if gpu.first_cuda is None or cuda.minor >= gpu.first_cuda:
        return None
    known = (
        row.compute_capability
        for row in catalog.tables["cuda.architectures"]
        if row.first_cuda is None or row.first_cuda <= cuda.minor
    )
    return max((each for each in known if each < gpu.compute_capability), default=None)


def runs(catalog: Catalog, driver: Version, toolkit: Toolkit, gpus: tuple[GpuModel, ...]) -> bool:
    """Return whether every GPU is supported by driver and toolkit, and the toolkit runs on the driver in some
    way.

    Values unknown to the catalog count as supported.
    """
    fits = all(gpu_driver_ok(gpu, driver) is not False and gpu_cuda_ok(gpu, toolkit.version) for gpu in gpus)
    return fits and way(catalog, driver, toolkit.version, toolkit, gpus) != "no"


def end_of_life(branch: Branch, as_of: str) -> bool:
    """Return whether the branch's last month of support is before the day `as_of` (ISO); False if it is
    unknown.

    Source: NVIDIA Data Center Drivers, "Supported Drivers and CUDA Toolkit Versions".
    """
    return branch.eol is not None and branch.eol < as_of[:7]
