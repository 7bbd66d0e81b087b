"""Rules of GPUDirect Storage: nvidia-fs, a separate module in addition to NVIDIA's.

Sources: NVIDIA/gds-nvidia-fs, ChangeLog, dkms.conf and issues; NVIDIA GPUDirect Storage documentation,
"GPUDirect Storage Filesystem Kernel Driver (nvidia-fs)" and "GDS Installation".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuprov.catalog.records import Flavour, GpuModel, KnownIssue
from gpuprov.catalog.version import Version

SOURCE = ("gds-changelog", "gds-docs")
OPEN_FROM = Version("2.17.5")
"""First release that uses NVIDIA's peer-to-peer functions as symbols: the proprietary modules, which are not
under the GPL, may not give them to it.
"""
WITHOUT_FROM = Version("12.8")
"""First CUDA whose cuFile has a mode without nvidia-fs (P2PDMA), on kernels and drivers that have it."""


def flavour_fits(release: Version | None, flavour: Flavour | None) -> bool:
    """Return whether nvidia-fs can be loaded with a flavour of NVIDIA's module: from `OPEN_FROM` on not with
    the proprietary one.

    Args:
        release: None for the newest.
    """
    return flavour != "proprietary" or (release is not None and release < OPEN_FROM)


def vendor_supports(gpu: GpuModel) -> bool:
    """Return whether the vendor supports GPUDirect Storage on a GPU: data-centre and workstation boards."""
    return gpu.segment in ("data-center", "workstation")


def failed_builds(issues: Iterable[KnownIssue], release: Version) -> Iterator[KnownIssue]:
    """Yield the known failures of a release of nvidia-fs."""
    return (issue for issue in issues if release in issue.nvidia_fs)
