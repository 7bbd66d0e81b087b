"""What is not stated is chosen here: one choice after the other, each from the catalog's own lists."""

from __future__ import annotations

from dataclasses import replace

from gpuprov.catalog import Version
from gpuprov.catalog.records import Cudnn, Gpu, Nccl, Toolkit
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
    published = [toolkit for toolkit in native or releases if toolkit.status == "released"]
    release = (published or releases)[-1]
    return replace(draft, cuda=release.version, toolkit=release)


def _newest_native(case: Case, draft: Draft) -> Toolkit | None:
    """The newest release that runs natively, fits every GPU and the stated libraries, and is held for the
    system.

    Releases that nobody has seen in the system's repositories count only when there is no other; where
    nothing runs natively, the one nearest to the driver that runs by minor-version compatibility.
    """
    suitable = [
        (t, _held(case, t.version)) for t in reversed(case.catalog.released_toolkits) if _suits(case, t)
    ]
    for wanted in ("yes", "unproven"):
        for toolkit, held in suitable:
            if held == wanted and driver.native(draft.driver, toolkit):
                return toolkit
    for toolkit, held in reversed(suitable):
        if held != "no" and driver.minor_compat(case.catalog, draft.driver, toolkit.version.major):
            return toolkit
    return None


def _suits(case: Case, toolkit: Toolkit) -> bool:
    cuda, catalog = toolkit.version, case.catalog
    if not all(driver.gpu_cuda_ok(gpu, cuda) for gpu in case.gpus):
        return False
    compat, build = case.stated.get("compat"), case.nccl_build
    if (compat and not cuda.within(compat.minor)) or (build and build.major != cuda.major):
        return False
    cudnn, nccl = case.stated.get("cudnn"), case.stated.get("nccl")
    built_for_cudnn = not cudnn or libraries.cudnn_build_exists(catalog, cudnn, cuda.major) is not False
    return built_for_cudnn and (
        not nccl or libraries.nccl_build_exists(catalog, nccl, cuda.major) is not False
    )


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
        releases = [record for record in case.catalog.cudnn if record.version.within(stated)]
        built = [record for record in releases if draft.cuda and _cudnn_built(record, draft.cuda.major)]
        return replace(draft, cudnn=(built or releases)[-1].version if releases else stated)
    if draft.cuda is None or "cudnn" in case.absent or not _served(case):
        return draft
    major = draft.cuda.major
    for record in reversed(case.catalog.cudnn):
        fits = _cudnn_built(record, major) and libraries.cudnn_build_exists(
            case.catalog, record.version, major
        )
        if fits and all(_cudnn_proven(case, record, gpu) for gpu in case.gpus):
            return draft.with_(cudnn=record.version)
    return draft


def _cudnn_built(record: Cudnn, cuda_major: int) -> bool:
    seen = any(build.major == cuda_major for build in record.deb_builds_seen)
    return seen or cuda_major in record.wheel_cuda_majors


def _cudnn_proven(case: Case, record: Cudnn, gpu: Gpu) -> bool:
    """Kepler needs a release whose own matrix row was read; for later GPUs the general rule is enough."""
    floor = record.min_compute_capability
    read = gpu.compute_capability >= floor if floor else gpu.architecture != "Kepler"
    return read and libraries.cudnn_gpu_ok(case.catalog, record.version, gpu)


def _nccl(case: Case, draft: Draft) -> Draft:
    stated = case.stated.get("nccl")
    if stated is not None:
        releases = [record for record in case.catalog.nccl if record.version.within(stated)]
        release = releases[-1] if releases else None
        build = case.nccl_build or (release and _newest_build(draft, release))
        return replace(draft, nccl=release.version if release else stated, nccl_build=build or None)
    if draft.cuda is None or "nccl" in case.absent or not _served(case):
        return draft
    for record in reversed(case.catalog.nccl):
        build = _newest_build(draft, record)
        if build and all(
            libraries.nccl_gpu_ok(case.catalog, record.version, build.major, gpu) for gpu in case.gpus
        ):
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
