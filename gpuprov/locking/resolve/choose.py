"""Choice of components that are not stated, one after the other, from the catalog's lists."""

from __future__ import annotations

from functools import cached_property

from gpuprov.catalog import Version
from gpuprov.catalog.records import Cudnn, Flavour, GpuModel, Nccl, Toolkit
from gpuprov.catalog.rules import containers, driver, fabric, libraries, module, storage, systems
from gpuprov.locking.resolve.case import Case, Draft


class Chooser:
    """Completion of one case's drafts; results that do not depend on the driver are cached."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._catalog = case.catalog
        self._cudnn_by_major: dict[int, list[Version]] = {}

    def complete(self, draft: Draft) -> Draft:
        """Set every open component of a draft, and return it; a component without a suitable version
        stays None.
        """
        self._flavour(draft)
        self._cuda(draft)
        self._compat(draft)
        self._cudnn(draft)
        self._nccl(draft)
        self._container_toolkit(draft)
        self._fabricmanager(draft)
        return draft

    def _flavour(self, draft: Draft) -> None:
        """Set the stated flavour, or choose the default one; from an archive, one that the archive has.

        With GPUDirect Storage, choose one with which its module can be loaded.
        """
        case = self._case
        if case.module is not None:
            draft.flavour = case.module
            return
        flavour = module.default_flavour(case.gpus, draft.driver.major, draft.branch)
        if case.gds and not storage.flavour_fits(case.gds_release, flavour):
            flavour = "open" if "open" in self._flavours(draft) else flavour
        held = case.system and systems.archive_driver(case.system, draft.driver)
        if draft.repository == "distribution" and held and flavour not in held.flavours:
            flavour = next(iter(self._flavours(draft) & set(held.flavours)), flavour)
        draft.choose(flavour=flavour)

    def _flavours(self, draft: Draft) -> frozenset[Flavour]:
        """Return the flavours for every GPU of the host that the driver's branch contains."""
        return module.host_flavours(self._case.gpus, draft.driver.major, draft.branch)

    def _cuda(self, draft: Draft) -> None:
        """Set the stated toolkit, or choose the newest suitable one.

        A stated beginning of a version becomes its newest release, preferably one that is native and
        published. A stated version that is in no list is set unchanged.
        """
        if "cuda" in self._case.absent:
            return
        stated = self._case.stated.get("cuda")
        if stated is None:
            toolkit = self._newest_toolkit(draft)
            draft.choose(cuda=toolkit and toolkit.version, toolkit=toolkit)
            return
        releases = [toolkit for toolkit in self._catalog.toolkits if toolkit.version.within(stated)]
        if not releases:
            draft.cuda = stated
            return
        native = [toolkit for toolkit in releases if driver.native(draft.driver, toolkit)]
        published = [toolkit for toolkit in native or releases if toolkit.status == "released"]
        draft.toolkit = (published or native or releases)[-1]
        draft.cuda = draft.toolkit.version

    def _newest_toolkit(self, draft: Draft) -> Toolkit | None:
        """Return the newest suitable release that runs natively.

        Releases not seen in the system's repositories count only without any other. If none runs natively,
        return the oldest suitable release that runs by minor-version compatibility, or None.
        """
        for wanted in ("yes", "unproven"):
            for toolkit, held in self._suitable_toolkits:
                if held == wanted and driver.native(draft.driver, toolkit):
                    return toolkit
        for toolkit, _ in reversed(self._suitable_toolkits):
            if driver.minor_compat(self._catalog, draft.driver, toolkit.version.major):
                return toolkit
        return None

    @cached_property
    def _suitable_toolkits(self) -> list[tuple[Toolkit, systems.Held]]:
        """Releases that suit every GPU and the stated libraries and may exist
        for the system, newest first.
        """
        found: list[tuple[Toolkit, systems.Held]] = []
        for toolkit in reversed(self._catalog.released_toolkits):
            held = _held(self._case, toolkit.version)
            if held != "no" and _suits(self._case, toolkit.version):
                found.append((toolkit, held))
        return found

    def _compat(self, draft: Draft) -> None:
        """Set the stated forward-compatibility package, or choose one if CUDA needs it; never if it must
        be absent.
        """
        if "compat" in self._case.stated:
            draft.compat = self._case.stated["compat"].minor
        elif draft.cuda is not None and "compat" not in self._case.absent:
            way = driver.way(self._catalog, draft.driver, draft.cuda, draft.toolkit, self._case.gpus)
            draft.choose(compat=draft.cuda.minor if way in ("forward", "forward?", "former") else None)

    def _cudnn(self, draft: Draft) -> None:
        """Set the stated cuDNN, or choose the newest one for the toolkit, the driver and every GPU.

        None is chosen without CUDA, or if NVIDIA's repository does not serve the machine.
        """
        stated = self._case.stated.get("cudnn")
        if stated is not None:
            releases = [record for record in self._catalog.cudnn if record.version.within(stated)]
            built = [record for record in releases if draft.cuda and _built_for(record, draft.cuda.major)]
            draft.cudnn = (built or releases)[-1].version if releases else stated
        elif draft.cuda is not None and "cudnn" not in self._case.absent and self._served:
            for cudnn in self._fitting_cudnn(draft.cuda.major):
                floor = libraries.cudnn_min_driver(self._catalog, cudnn, draft.cuda.major)
                if floor is None or draft.driver >= floor or draft.compat is not None:
                    draft.choose(cudnn=cudnn)
                    return

    def _fitting_cudnn(self, cuda_major: int) -> list[Version]:
        """Return releases with a build for the CUDA major and code for every GPU, newest first."""
        if cuda_major not in self._cudnn_by_major:
            self._cudnn_by_major[cuda_major] = [
                record.version
                for record in reversed(self._catalog.cudnn)
                if _built_for(record, cuda_major)
                and libraries.cudnn_build_exists(self._catalog, record.version, cuda_major)
                and all(self._cudnn_proven(record, gpu) for gpu in self._case.gpus)
            ]
        return self._cudnn_by_major[cuda_major]

    def _cudnn_proven(self, record: Cudnn, gpu: GpuModel) -> bool:
        """Return whether cuDNN has code for the GPU; for Kepler only if the release's own matrix row was
        read.
        """
        floor = record.min_compute_capability
        read = gpu.compute_capability >= floor if floor else gpu.architecture != "Kepler"
        return read and libraries.cudnn_gpu_ok(self._catalog, record.version, gpu)

    def _nccl(self, draft: Draft) -> None:
        """Set the stated NCCL and its build, or choose the newest ones for the toolkit, the driver and every
        GPU.

        None is chosen without CUDA, or if NVIDIA's repository does not serve the machine.
        """
        stated = self._case.stated.get("nccl")
        if stated is not None:
            releases = [record for record in self._catalog.nccl if record.version.within(stated)]
            draft.nccl = releases[-1].version if releases else stated
            known = _newest_build(self._case, draft, releases[-1]) if releases else None
            draft.nccl_build = self._case.nccl_build or known
        elif draft.cuda is not None and "nccl" not in self._case.absent and self._served:
            for record in reversed(self._catalog.nccl):
                build = _newest_build(self._case, draft, record)
                if build and self._nccl_fits(record, build):
                    draft.choose(nccl=record.version, nccl_build=build)
                    return

    def _nccl_fits(self, record: Nccl, build: Version) -> bool:
        """Return whether a build of NCCL has code for every GPU of the host."""
        gpus = self._case.gpus
        return all(libraries.nccl_gpu_ok(self._catalog, record.version, build.major, gpu) for gpu in gpus)

    @cached_property
    def _served(self) -> bool:
        """Whether NVIDIA's repository, the only one with these libraries, serves the machine."""
        return self._case.system is not None and systems.nvidia_serves(self._case.system, self._case.arch)

    def _container_toolkit(self, draft: Draft) -> None:
        """Set the stated release, or choose the newest one for the stated Docker, or for the system's own.

        It also has to suit the stated Podman. Docker and Podman are set as stated.
        """
        case = self._case
        draft.docker, draft.podman = case.stated.get("docker"), case.stated.get("podman")
        if "container_toolkit" in case.stated:
            draft.container_toolkit = case.stated["container_toolkit"]
        elif "container_toolkit" not in case.absent and case.system is not None:
            newest = containers.newest_toolkit(
                self._catalog, draft.docker or case.system.docker, draft.podman
            )
            draft.choose(container_toolkit=newest.version if newest else None)

    def _fabricmanager(self, draft: Draft) -> None:
        """Set the stated fabric manager, or choose the driver's version if the host needs or probably
        needs one.
        """
        stated = self._case.stated.get("fabricmanager")
        if stated is not None:
            same = len(stated.parts) == 1 and draft.driver.within(stated)
            draft.fabricmanager = draft.driver if same else stated
        elif "fabricmanager" not in self._case.absent:
            switched = fabric.host_need(self._case.counts) in ("required", "likely")
            draft.choose(fabricmanager=draft.driver if switched else None)


def _suits(case: Case, cuda: Version) -> bool:
    """Return whether a CUDA release supports every GPU, and the stated compat package, cuDNN and NCCL exist
    for it.

    Values unknown to the catalog count as supported.
    """
    if not all(driver.gpu_cuda_ok(gpu, cuda) for gpu in case.gpus):
        return False
    compat, build = case.stated.get("compat"), case.nccl_build
    if (compat and not cuda.within(compat.minor)) or (build and build.major != cuda.major):
        return False
    cudnn, nccl = case.stated.get("cudnn"), case.stated.get("nccl")
    built_for_cudnn = not cudnn or libraries.cudnn_build_exists(case.catalog, cudnn, cuda.major) is not False
    return built_for_cudnn and (
        not nccl or libraries.nccl_build_exists(case.catalog, nccl, cuda.major) is not False
    )


def _held(case: Case, cuda: Version) -> systems.Held:
    """Return whether a repository for the machine has a CUDA release: NVIDIA's or the distribution's;
    `unproven` for an unknown system.
    """
    if case.system is None:
        return "unproven"
    if systems.archive_cuda(case.system, cuda):
        return "yes"
    if not systems.nvidia_serves(case.system, case.arch):
        return "no"
    return systems.cuda_held(case.system, cuda)


def _built_for(record: Cudnn, cuda_major: int) -> bool:
    """Return whether a wheel or a Debian package of a cuDNN release was seen for a CUDA major."""
    seen = any(build.major == cuda_major for build in record.deb_builds_seen)
    return seen or cuda_major in record.wheel_cuda_majors


def _newest_build(case: Case, draft: Draft, release: Nccl) -> Version | None:
    """Return the release's newest build for the toolkit's major whose CUDA minor the driver or compat package
    supports, or None.
    """
    known = draft.compat or (draft.branch.native_cuda if draft.branch else draft.cuda)
    if draft.cuda is None or known is None:
        return None
    builds = libraries.nccl_builds(release, case.system)
    major = draft.cuda.major
    return max((b for b in builds if b.major == major and b <= known), default=None)
