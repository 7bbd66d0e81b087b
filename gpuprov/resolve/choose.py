"""What is not stated is chosen here: one choice after the other, each from the catalog's own lists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpuprov.catalog import Version
from gpuprov.catalog.records import Nccl, Toolkit
from gpuprov.catalog.rules import containers, driver, fabric, libraries, module, systems
from gpuprov.resolve.case import Case, Draft


def complete(case: Case, draft: Draft) -> Draft:
    """The draft with every open component chosen; a component that nothing fits stays None."""
    for choose in (_flavour, _cuda, _compat, _cudnn, _nccl, _container_toolkit, _fabricmanager):
        draft = choose(case, draft)
    return draft


def _flavour(case: Case, draft: Draft) -> Draft:
    if case.module is not None:
        return replace(draft, flavour=case.module)
    flavour = module.default_flavour(case.gpus, draft.driver.major, draft.branch)
    held = case.system and systems.archive_driver(case.system, draft.driver)
    if draft.repository == "distribution" and held and flavour not in held.flavours:
        allowed = module.host_flavours(case.gpus, draft.driver.major, draft.branch) & set(held.flavours)
        flavour = next(iter(allowed), flavour)
    return draft.with_(flavour=flavour)


def _cuda(case: Case, draft: Draft) -> Draft:
    stated = case.stated.get("cuda")
    if stated is None:
        toolkit = None if "cuda" in case.absent else _newest_native(case, draft)
        return draft.with_(cuda=toolkit.version, toolkit=toolkit) if toolkit else draft
    releases = [toolkit for toolkit in case.catalog.toolkits if toolkit.version.within(stated)]
    if not releases:
        return replace(draft, cuda=stated)
    native = [toolkit for toolkit in releases if driver.native(draft.driver, toolkit)]
    release = max(_published(native) or _published(releases) or releases, key=_version)
    return replace(draft, cuda=release.version, toolkit=release)


def _published(toolkits: Iterable[Toolkit]) -> list[Toolkit]:
    return [toolkit for toolkit in toolkits if toolkit.status == "released"]


def _version(record: Toolkit | Nccl) -> Version:
    return record.version


def _newest_native(case: Case, draft: Draft) -> Toolkit | None:
    """The newest release that runs natively, fits every GPU and the stated libraries, and is held for the system;
    releases nobody has seen in the system's repositories only when there is no other."""
    proven, unproven = [], []
    for toolkit in _published(case.catalog.toolkits):
        if driver.native(draft.driver, toolkit) and _suits(case, toolkit):
            held = _held(case, toolkit.version)
            proven += [toolkit] if held == "yes" else []
            unproven += [toolkit] if held == "unproven" else []
    return max(proven or unproven, key=_version, default=None)


def _suits(case: Case, toolkit: Toolkit) -> bool:
    cuda, catalog = toolkit.version, case.catalog
    if "compat" in case.stated and not cuda.within(case.stated["compat"].minor):
        return False
    cudnn, nccl = case.stated.get("cudnn"), case.stated.get("nccl")
    if cudnn and libraries.cudnn_build_exists(catalog, cudnn, cuda.major) is False:
        return False
    if nccl and libraries.nccl_build_exists(catalog, nccl, cuda.major) is False:
        return False
    if case.nccl_build and case.nccl_build.major != cuda.major:
        return False
    return all(driver.gpu_cuda_ok(gpu, cuda) for gpu in case.gpus)


def _held(case: Case, cuda: Version) -> systems.Held:
    if case.system is None:
        return "unproven"
    if systems.archive_cuda(case.system, cuda):
        return "yes"
    if not systems.nvidia_serves(case.system, case.arch):
        return "no"
    return systems.cuda_held(case.system, cuda)


def _compat(case: Case, draft: Draft) -> Draft:
    """A forward-compatibility package, where CUDA does not run without one; never when one is ruled out."""
    if "compat" in case.stated:
        return replace(draft, compat=case.stated["compat"].minor)
    if draft.cuda is None or "compat" in case.absent:
        return draft
    way = driver.way(case.catalog, draft.driver, draft.cuda, draft.toolkit, case.gpus)
    return draft.with_(compat=draft.cuda.minor) if way in ("forward", "forward?") else draft


def _served(case: Case) -> bool:
    """Whether NVIDIA's repository, the only one with these libraries, serves the machine."""
    return case.system is not None and systems.nvidia_serves(case.system, case.arch)


def _cudnn(case: Case, draft: Draft) -> Draft:
    stated = case.stated.get("cudnn")
    if stated is not None:
        releases = [record.version for record in case.catalog.cudnn if record.version.within(stated)]
        return replace(draft, cudnn=max(releases, default=stated))
    if draft.cuda is None or "cudnn" in case.absent or not _served(case):
        return draft
    major = draft.cuda.major
    fitting = [
        record.version
        for record in case.catalog.cudnn
        if (major in record.wheel_cuda_majors or any(build.major == major for build in record.deb_builds_seen))
        and libraries.cudnn_build_exists(case.catalog, record.version, major) is not False
        and all(_cudnn_proven(case, record.version, record.min_compute_capability, gpu) for gpu in case.gpus)
    ]
    return draft.with_(cudnn=max(fitting, default=None))


def _cudnn_proven(case: Case, cudnn: Version, floor: Version | None, gpu: driver.Gpu) -> bool:
    """Kepler needs a release whose own matrix row was read; for later GPUs the general rule is enough."""
    read = gpu.compute_capability >= floor if floor else gpu.architecture != "Kepler"
    return read and libraries.cudnn_gpu_ok(case.catalog, cudnn, gpu)


def _nccl(case: Case, draft: Draft) -> Draft:
    stated = case.stated.get("nccl")
    if stated is not None:
        releases = [record for record in case.catalog.nccl if record.version.within(stated)]
        release = max(releases, key=_version, default=None)
        build = case.nccl_build or (release and _newest_build(draft, release))
        return replace(draft, nccl=release.version if release else stated, nccl_build=build or None)
    if draft.cuda is None or "nccl" in case.absent or not _served(case):
        return draft
    for record in sorted(case.catalog.nccl, key=_version, reverse=True):
        build = _newest_build(draft, record)
        if build and all(libraries.nccl_gpu_ok(case.catalog, record.version, build.major, gpu) for gpu in case.gpus):
            return draft.with_(nccl=record.version, nccl_build=build)
    return draft


def _newest_build(draft: Draft, release: Nccl) -> Version | None:
    """The release's newest build for the toolkit's major whose CUDA minor the driver knows."""
    known = draft.compat or (draft.branch.native_cuda if draft.branch else draft.cuda)
    builds = [build for build in release.cuda_builds_seen if draft.cuda and build.major == draft.cuda.major]
    return max((build for build in builds if known and build <= known), default=None)


def _container_toolkit(case: Case, draft: Draft) -> Draft:
    """The newest release that Docker can work with: the stated Docker, or the system's own."""
    docker = case.stated.get("docker")
    draft = replace(draft, docker=docker)
    if "container_toolkit" in case.stated:
        return replace(draft, container_toolkit=case.stated["container_toolkit"])
    if "container_toolkit" in case.absent or case.system is None:
        return draft
    newest = containers.newest_toolkit(case.catalog, docker or case.system.docker)
    return draft.with_(container_toolkit=newest.version) if newest else draft


def _fabricmanager(case: Case, draft: Draft) -> Draft:
    if "fabricmanager" in case.stated:
        stated = case.stated["fabricmanager"]
        same = len(stated.parts) == 1 and draft.driver.within(stated)
        return replace(draft, fabricmanager=draft.driver if same else stated)
    if "fabricmanager" in case.absent or fabric.host_need(case.counts) not in ("required", "likely"):
        return draft
    return draft.with_(fabricmanager=draft.driver)
