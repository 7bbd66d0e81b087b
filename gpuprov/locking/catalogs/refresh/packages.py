"""Readers of NVIDIA's repositories and distributions' archives, from their signed indexes.

Names of packages: NVIDIA Driver Installation Guide; Debian's and Ubuntu's archives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuprov.catalog import Catalog, version
from gpuprov.errors import GpuprovError, Unreachable
from gpuprov.locking.archives import ARCHIVES, Finder
from gpuprov.locking.catalogs.refresh.days import BUILT
from gpuprov.locking.catalogs.refresh.gpu_lists import gpu_list
from gpuprov.locking.catalogs.refresh.seen import GpuList, NotRead, Reading, Readings, Seen
from gpuprov.locking.repository.index import Index, Package
from gpuprov.model.fleet import Fleet, Mirror

NVIDIA = "index-nvidia"
OF_ARCHIVES = "index-archives"

_VERSION = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,5}){1,3}")
_DRIVER = re.compile(
    r"(?:nvidia-open|cuda-drivers)(?:-[0-9]+)?|nvidia-kernel(?:-open)?-dkms|kmod-nvidia-(?:open|latest)-dkms"
)
_CUDA = re.compile(r"cuda-(?P<kind>toolkit|compat)-(?P<cuda>[0-9]{1,5}-[0-9]{1,5})")
_CUDNN = re.compile(r"libcudnn9-cuda-(?P<major>[0-9]{1,5})")
_ARCHIVE = re.compile(r"nvidia-(?:(?P<series>tesla(?:-[0-9]+)?)-)?smi")
_DRIVER_PACKAGE = re.compile(r"nvidia-(?:tesla-(?:[0-9]+-)?)?driver")
_BUILD = re.compile(r"\+cuda(?P<cuda>[0-9]{1,5}\.[0-9]{1,5})")
ASSISTANT = "nvidia-driver-assistant"
"""NVIDIA's package with the newest supported-gpus.json, for all systems."""


def read_nvidia(catalog: Catalog, base: str | None, key: Path | None, day: str) -> Readings:
    """Read NVIDIA's repositories for every system, and the container toolkit's. The list of GPUs is read for
    the first system with a driver only.

    Args:
        base: a folder or URL with the same layout, for a mirror; None: NVIDIA's own.
        key: the public key of the mirror.
        day: of the reading, ISO.

    Returns:
        One reading if any repository of a system was read, and a `NotRead` for each list that was not. If one
        does not answer at all, only a `NotRead` for all of them.
    """
    finder = _finder(catalog, base, key)
    seen: list[Seen] = []
    lists: list[str] = []
    failed: list[NotRead] = []
    gpus: list[GpuList] = []
    for system in catalog.systems.values():
        try:
            index = finder.archives("nvidia", system, "x86_64").index
        except Unreachable as error:
            return [NotRead("NVIDIA's repositories", str(error))]  # the others are on the same host
        except GpuprovError as error:
            failed.append(NotRead(f"NVIDIA's repository for {system.title}", str(error)))
            continue
        held = list(_of_nvidia(index, system.id))
        seen += held
        lists.append(system.id)
        newest = max((each.version for each in held if each.kind == "driver"), default=None)
        if newest and not gpus:
            gpus += [
                each for found in index.versions(ASSISTANT)[:1] for each in _list(found, str(newest), failed)
            ]
    seen += _toolkits(finder, catalog, failed)
    if not lists:
        return failed
    where = base or catalog.repositories["nvidia"].url or ""
    about = {"title": f"indexes of NVIDIA's repositories: {', '.join(lists)}", "dated": day}
    about |= {} if base else {"url": where}
    return [Reading(NVIDIA, about, tuple(lists), tuple(seen), tuple(gpus)), *failed]


def _finder(catalog: Catalog, base: str | None, key: Path | None) -> Finder:
    """Return the opener of NVIDIA's repositories below a mirror's folder or URL; without one, at the
    catalog's URLs.
    """
    mirrors: dict[str, Mirror] = {}
    if base:
        root = (
            base.rstrip("/") if "://" in base or base.startswith("file:") else f"file:{Path(base).resolve()}"
        )
        keys = str(key) if key else None
        mirrors = {
            "nvidia": Mirror(url=f"{root}/compute/cuda/repos/{{folder}}/{{arch}}/", key=keys),
            "container-toolkit": Mirror(url=f"{root}/libnvidia-container/stable", key=keys),
        }
    return Finder(Fleet.model_construct(repositories=mirrors), catalog)


def _of_nvidia(index: Index, system: str) -> Iterator[Seen]:
    """Yield drivers, CUDA toolkits, compat packages, cuDNN 9 and NCCL in the index of one system."""
    for name in sorted(index.names()):
        if _DRIVER.fullmatch(name):
            yield from _drivers(index, name, system)
        elif match := _CUDA.fullmatch(name):
            if match["kind"] == "toolkit":
                yield from _versions(index, name, lambda v: Seen("cuda", v, system))
            else:
                cuda = {"cuda": match["cuda"].replace("-", ".")}
                yield from _versions(index, name, lambda v, said=cuda: Seen("compat", v, system, said))
        elif match := _CUDNN.fullmatch(name):
            major = {"major": match["major"]}
            yield from _versions(index, name, lambda v, said=major: Seen("cudnn", v, system, said))
    for name in ("libnccl2", "libnccl"):
        for package in index.versions(name):
            upstream, build = index.order.upstream(package.version), _BUILD.search(package.version)
            if build and _VERSION.fullmatch(upstream):
                yield Seen("nccl", version(upstream), system, {"cuda": build["cuda"]})


def _drivers(index: Index, name: str, system: str) -> Iterator[Seen]:
    """Yield the drivers in a package's versions, with the flavour, and the day on which it was built."""
    proprietary = name.startswith(("cuda-drivers", "nvidia-kernel-dkms", "kmod-nvidia-latest"))
    flavour = {"flavour": "proprietary" if proprietary else "open"}
    for package in index.versions(name):
        upstream = index.order.upstream(package.version)
        if _VERSION.fullmatch(upstream):
            built = {BUILT: package.built} if package.built else {}
            yield Seen("driver", version(upstream), system, flavour | built)


def _versions(index: Index, name: str, make: Callable[..., Seen]) -> Iterator[Seen]:
    """Yield `make(version)` for each upstream version of a package that consists only of numbers."""
    for package in index.versions(name):
        upstream = index.order.upstream(package.version)
        if _VERSION.fullmatch(upstream):
            yield make(version(upstream))


def _toolkits(finder: Finder, catalog: Catalog, failed: list[NotRead]) -> Iterator[Seen]:
    """Yield releases of the container toolkit; nothing, and one more in `failed`, if its repository is
    not read.
    """
    system = next((each for each in catalog.systems.values() if each.manager == "apt"), None)
    if system is None:
        return
    try:
        index = finder.archives("container-toolkit", system, "x86_64").index
    except GpuprovError as error:
        failed.append(NotRead("the container toolkit's repository", str(error)))
        return
    yield from _versions(
        index, "nvidia-container-toolkit", lambda v: Seen("container_toolkit", v, "container-toolkit")
    )


def read_archives(catalog: Catalog, day: str) -> Readings:
    """Read the archives of those Debian releases for which the catalog has versions of drivers, for x86_64.

    The addresses are those of this machine's apt sources, if it has Debian, else of the catalog. Returns one
    reading if any archive was read, and a `NotRead` for each list that was not.
    """
    finder, seen, lists = Finder(Fleet.model_construct(repositories={}), catalog), [], []
    failed: list[NotRead] = []
    gpus: list[GpuList] = []
    for system in catalog.systems.values():
        repositories = {each.repository for each in system.archive_drivers if each.version}
        if system.family != "debian" or not repositories:
            continue
        whole = max(repositories, key=lambda each: len(ARCHIVES[each]))
        try:
            records = finder.archives(whole, system, "x86_64").index.records
            parts = {id_: Index(part) for id_, part in zip(ARCHIVES[whole], records, strict=True)}
            seen += [each for id_, index in parts.items() for each in _of_archive(index, id_, system.id)]
        except GpuprovError as error:
            failed.append(NotRead(f"the archive of {system.title}", str(error)))
            continue
        lists.append(system.id)
        for index in parts.values():
            gpus += _of_driver_packages(index, failed)
    if not lists:
        return failed
    about = {"title": f"indexes and driver packages of archives: {', '.join(lists)}", "dated": day}
    return [Reading(OF_ARCHIVES, about, tuple(lists), tuple(seen), tuple(gpus)), *failed]


def _of_archive(index: Index, repository: str, system: str) -> Iterator[Seen]:
    """Yield the drivers of one archive; its updates count as part of it."""
    for name in sorted(index.names()):
        if match := _ARCHIVE.fullmatch(name):
            said = {"repository": repository.removesuffix("-updates"), "series": match["series"] or ""}
            yield from _versions(index, name, lambda v, said=said: Seen("archive", v, system, said))


def _of_driver_packages(index: Index, failed: list[NotRead]) -> Iterator[GpuList]:
    """Yield the list of GPUs in the newest version of each driver package of an archive."""
    for name in sorted(index.names()):
        if _DRIVER_PACKAGE.fullmatch(name):
            package = index.versions(name)[0]
            yield from _list(package, index.order.upstream(package.version), failed)


def _list(package: Package, release: str, failed: list[NotRead]) -> Iterator[GpuList]:
    """Yield the list of GPUs in a package; nothing if it has none, or one more in `failed` if it cannot
    be read.
    """
    try:
        found = gpu_list(package, release)
    except GpuprovError as error:
        failed.append(NotRead(f"the list of GPUs in {package.name} {package.version}", str(error)))
        return
    if found:
        yield found
