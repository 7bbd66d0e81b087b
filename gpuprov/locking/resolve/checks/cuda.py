"""Checks of the CUDA toolkit and forward-compatibility packages."""

from __future__ import annotations

from gpuprov.catalog import Version
from gpuprov.catalog.records import GpuModel
from gpuprov.catalog.rules import driver as rules
from gpuprov.catalog.rules import systems
from gpuprov.locking.resolve.case import Case, Draft
from gpuprov.locking.resolve.checks.findings import Findings, Ruling, reason, violation, warning

_COMPAT = "cuda-fwd-compat"
_MINOR = "cuda-minor-compat"


def release(case: Case, draft: Draft) -> Findings:
    """Check that the toolkit was published, and released.

    A version that was never published is a violation; one in no list, or not released, is a warning, and so
    is a stack for which no toolkit was found.
    """
    if draft.cuda is None:
        if "cuda" not in case.absent:
            text = "no CUDA release runs natively on this driver, fits every GPU and is held for this system"
            yield warning(case, "cuda-none", text, "cuda-rn-13.4u1", "dc-arch-matrix")
        return
    for hole in case.catalog.tables["cuda.never_published"]:
        if draft.cuda.within(hole.version):
            yield violation(
                case, "cuda-published", f"there is no CUDA toolkit {hole.version}: {hole.note}", *hole.source
            )
            return
    if draft.toolkit is None:
        major = draft.cuda.major
        known = [each.version for each in case.catalog.released_toolkits if each.version.major == major]
        newest = f": the newest of CUDA {major} known here is {max(known)}" if known else ""
        text = f"CUDA {draft.cuda} is in no list of releases{newest}"
        yield warning(case, "cuda-known", text, "cuda-rn-13.4u1")
    elif draft.toolkit.status != "released":
        status = draft.toolkit.status.replace("_", " ")
        yield warning(
            case, "cuda-released", f"CUDA {draft.cuda}: {status}, not a release", *draft.toolkit.source
        )


def gpus(case: Case, draft: Draft) -> Findings:
    """Check that the toolkit supports every GPU; a GPU that it does not support is a violation.

    A GPU that is newer than the toolkit and runs its binaries for an older one, or its PTX, is a warning.
    """
    if draft.cuda is None:
        return
    for gpu in case.gpus:
        what = f"CUDA {draft.cuda}"
        if binaries := rules.older_binaries(case.catalog, gpu, draft.cuda):
            yield older(case, "gpu-cuda-older", what, gpu, binaries)
        elif newest := rules.newest_ptx(case.catalog, gpu, draft.cuda):
            text = (
                f"{_without_target(what, gpu)}: only programs and libraries with PTX run there, up to that "
                f"for {newest}, which the driver compiles when they start; others end with error 209"
            )
            yield warning(case, "gpu-cuda-ptx", text, "blackwell-compat", "dc-arch-matrix")
        elif not rules.gpu_cuda_ok(gpu, draft.cuda):
            yield unsupported(case, "gpu-cuda", what, gpu, draft.cuda)


def older(case: Case, rule: str, what: str, gpu: GpuModel, binaries: Version) -> Ruling:
    """Return the warning for a GPU that runs binaries of an older one from a CUDA version in `what`."""
    text = f"{_without_target(what, gpu)}: its binaries for {binaries} run there"
    return warning(case, rule, text, "blackwell-compat", "nixpkgs-cuda")


def _without_target(what: str, gpu: GpuModel) -> str:
    """Return that a CUDA version is older than a GPU, as the beginning of a sentence."""
    capability = f"compute capability {gpu.compute_capability}, first CUDA {gpu.first_cuda}"
    return f"{what} has no target for {gpu.id} ({capability})"


def unsupported(case: Case, rule: str, what: str, gpu: GpuModel, cuda: Version) -> Ruling:
    """Return the violation for a GPU outside the range of a CUDA version that comes with `what`."""
    named = f"{gpu.id} ({gpu.architecture}, compute capability {gpu.compute_capability})"
    if gpu.last_cuda is not None and cuda.minor > gpu.last_cuda:
        text = f"{what} has dropped {named}: its last CUDA is {gpu.last_cuda}"
    else:
        text = f"{what} does not know {named} yet: its first CUDA is {gpu.first_cuda}"
    return violation(case, rule, text, "dc-arch-matrix", "nixpkgs-cuda")


def on_driver(case: Case, draft: Draft) -> Findings:
    """Check that the toolkit runs on the driver: natively, or by minor-version or forward compatibility.

    Native is a reason, compatibility or an unknown driver floor a warning; all else is a violation.
    """
    if draft.cuda is None:
        return
    way = rules.way(case.catalog, draft.driver, draft.cuda, draft.toolkit, case.gpus)
    what = f"CUDA {draft.cuda} on driver {draft.driver}"
    if way == "native":
        source = draft.toolkit.source if draft.toolkit else ("cuda-rn-13.4u1",)
        yield reason(case, "cuda-native", f"{what}: native, all features", *source)
    elif way == "minor":
        yield warning(
            case, "cuda-minor-compat", minor_text(case, what, draft.cuda, draft), _MINOR, "cuda-rn-13.4u1"
        )
    elif way in ("forward", "forward?", "former"):
        yield from _forward(case, draft, what, way)
    elif way == "unknown" and not without_compat(case, draft, draft.cuda):
        older = rules.before_minor_compat(case.catalog, draft.driver, draft.branch, draft.cuda)
        rule = "cuda-driver" if older else "cuda-driver-unknown"
        yield warning(case, rule, unknown_text(case, what, draft.cuda, draft), _MINOR, "cuda-rn-early")
    else:
        yield violation(
            case,
            "cuda-driver",
            too_old_text(case, what, draft.cuda, draft),
            _MINOR,
            "cuda-rn-13.4u1",
            _COMPAT,
        )


def minor_text(case: Case, what: str, cuda: Version, draft: Draft) -> str:
    """Return a sentence about the limits of minor-version compatibility."""
    return (
        f"{what}: works by minor-version compatibility; code compiled from PTX fails (error 222) "
        f"and features of a newer driver return error 801; native needs {_native_driver(case, cuda)}"
    )


def without_compat(case: Case, draft: Draft, cuda: Version) -> bool:
    """Return whether a CUDA release before 11 needs a compat package on this driver, and none is allowed."""
    return "compat" in case.absent and rules.too_old(case.catalog, draft.driver, cuda)


def unknown_text(case: Case, what: str, cuda: Version, draft: Draft) -> str:
    """Return what is known of a CUDA release without a driver floor; `what` begins the sentence."""
    if not rules.before_minor_compat(case.catalog, draft.driver, draft.branch, cuda):
        return f"{what}: no driver floor is known for CUDA {cuda.major}"
    lowest = rules.early_driver(case.catalog, cuda)
    return (
        f"{what}: minor versions are compatible from CUDA {rules.FIRST_MINOR_COMPAT} on: it needs "
        f"{f'driver {lowest} or newer' if lowest else 'a newer driver'}, or a compat package"
    )


def _native_driver(case: Case, cuda: Version) -> str:
    """Return the driver that runs a CUDA release natively, as text; `a newer driver` if the catalog lacks the
    release.
    """
    for toolkit in case.catalog.toolkits:
        if toolkit.version.within(cuda):
            paired = toolkit.driver_corresponding_linux_x86_64
            return f"driver {paired}" if paired else f"driver branch {toolkit.driver_branch}"
    return "a newer driver"


def too_old_text(case: Case, what: str, cuda: Version, draft: Draft) -> str:
    """Return why a toolkit does not run on a driver, and why no compat package helps; `what` begins the
    sentence.
    """
    floor = rules.min_driver(case.catalog, cuda.major)
    if floor is None and (lowest := rules.early_driver(case.catalog, cuda)):
        return f"{what}: CUDA {cuda} needs driver {lowest} or newer{_without_package(case, cuda)}"
    if floor is None:
        known = draft.branch.native_cuda if draft.branch else "another major"
        return f"{what}: the driver knows CUDA up to {known}"
    text = f"{what}: CUDA {cuda.major} needs driver {floor} or newer"
    row = case.catalog.forward_compat.get(cuda.minor)
    name = f"cuda-compat-{str(cuda.minor).replace('.', '-')}"
    if row is None or not row.base_branches:
        return f"{text}; there is no {name} in the forward-compatibility matrix"
    if not rules.forward_compat_base(case.catalog, draft.driver.major, cuda):
        bases = ", ".join(map(str, row.base_branches))
        return (
            f"{text}, and {name} goes on branches {bases} (no new-feature ones), not on {draft.driver.major}"
        )
    boards = ", ".join(gpu.id for gpu in case.gpus if rules.forward_compat_gpu(gpu) is False)
    return f"{text}, and forward compatibility is not for {boards}"


def _without_package(case: Case, cuda: Version) -> str:
    """Return why no compat package helps a CUDA release before 11, as the end of a sentence."""
    if cuda.major < rules.FIRST_COMPAT_PACKAGE:
        return f": compat packages begin with CUDA {rules.FIRST_COMPAT_PACKAGE}"
    boards = ", ".join(gpu.id for gpu in case.gpus if rules.forward_compat_gpu(gpu) is False)
    return f", and compat packages are not for {boards}" if boards else ", or a compat package"


def _forward(case: Case, draft: Draft, what: str, way: str) -> Findings:
    """Yield the findings for a toolkit that needs a compat package: a violation if the request excludes one,
    else a warning, and another for GPUs on which it may not work.
    """
    if "compat" in case.absent:
        text = f"{what} runs with a forward-compatibility package alone, and none is allowed"
        yield violation(case, "cuda-driver", text, _MINOR, _COMPAT)
        return
    assert draft.cuda is not None  # noqa: S101
    name = f"cuda-compat-{str(draft.cuda.minor).replace('.', '-')}"
    text = (
        f"{what}: runs through {name} in /usr/local/cuda-{draft.cuda.minor}/compat, which programs "
        "must be pointed to"
    )
    yield warning(case, "cuda-forward-compat", text, _COMPAT)
    if way == "former":
        yield _ended(case, draft, draft.cuda)
    elif way == "forward?":
        boards = ", ".join(gpu.id for gpu in case.gpus if rules.forward_compat_gpu(gpu) is None)
        text = (
            "forward compatibility is for data-centre GPUs and selected NGC-Ready RTX boards; is "
            f"{boards} one?"
        )
        yield warning(case, "forward-compat-gpu", text, _COMPAT)


def _ended(case: Case, draft: Draft, cuda: Version) -> Ruling:
    """Return the warning for a compat package on a driver branch that has ended."""
    text = (
        f"driver branch {draft.driver.major} has ended: NVIDIA's containers with CUDA {cuda.minor} ran on it "
        f"through their compat package, and NVIDIA supports that no longer"
    )
    return warning(case, "forward-compat-ended", text, *case.catalog.forward_compat[cuda.minor].source)


def compat_package(case: Case, draft: Draft) -> Findings:
    """Check that a requested forward-compatibility package fits branch and GPUs; one that was chosen is not
    checked.

    An unknown or needless package is a warning, another GPU or branch a violation.
    """
    if "compat" not in case.stated or draft.compat is None:
        return
    name, branch = f"cuda-compat-{str(draft.compat).replace('.', '-')}", draft.driver.major
    row = case.catalog.forward_compat.get(draft.compat)
    for gpu in case.gpus:
        if rules.forward_compat_gpu(gpu) is False:
            yield violation(
                case,
                "forward-compat-gpu",
                f"{name} does not work on {gpu.id}: not a data-centre GPU",
                _COMPAT,
            )
    if row is None:
        yield warning(
            case, "forward-compat-known", f"{name} is not in the forward-compatibility matrix", _COMPAT
        )
    elif draft.branch and draft.branch.type == "NFB" and branch not in row.native_branches:
        text = f"{name}: forward compatibility is not supported on the new-feature branch {branch}"
        yield violation(case, "forward-compat-branch", text, _COMPAT)
    elif branch in row.native_branches:
        yield warning(case, "forward-compat-needless", f"driver branch {branch} needs no {name}", _COMPAT)
    elif rules.former_compat_base(case.catalog, draft.driver, draft.compat):
        yield _ended(case, draft, draft.compat)
    elif branch not in row.base_branches and branch in case.catalog.branches:
        bases = ", ".join(map(str, row.base_branches)) or "of which none is left"
        yield violation(
            case, "forward-compat-branch", f"{name} goes on branches {bases}, not on {branch}", _COMPAT
        )


def on_system(case: Case, draft: Draft) -> Findings:
    """Check that the toolkit is packaged for the system; nothing for an unknown system.

    A toolkit in the distribution's archive is a reason. It is a violation if NVIDIA's repository lacks it, a
    warning if that is not known.
    """
    if draft.cuda is None or case.system is None:
        return
    archive = systems.archive_cuda(case.system, draft.cuda)
    served = systems.nvidia_serves(case.system, case.arch)
    held = systems.cuda_held(case.system, draft.cuda) if served else "no"
    title = case.system.title
    if archive and held != "yes":
        yield reason(
            case, "cuda-on-os", f"CUDA {draft.cuda} comes from the archive of {title}", *archive.source
        )
    elif not served and systems.nvidia_serves(case.system, "x86_64"):
        text = f"NVIDIA's repository for {title} does not serve {case.arch}: no CUDA {draft.cuda} there"
        yield violation(case, "cuda-on-os", text, *case.system.source)
    elif held == "no":
        text = f"NVIDIA's repository for {title} has no CUDA {draft.cuda}: {_range(case)}"
        yield violation(case, "cuda-on-os", text, *case.system.source)
    elif held == "unproven":
        text = (
            f"CUDA {draft.cuda} is not known to be in NVIDIA's repository for {title} ({_range(case)}): "
            "`gpuprov lock` looks in its index"
        )
        yield warning(case, "cuda-on-os", text, *case.system.source)


def _range(case: Case) -> str:
    """Return the CUDA releases that were seen in NVIDIA's repository for the system, as text."""
    system = case.system
    first = f"from {system.cuda_first}" if system and system.cuda_first else ""
    last = f"up to {system.cuda_last}" if system and system.cuda_last else ""
    return (
        f"it was seen {first} {last}".replace("  ", " ").strip()
        if first or last
        else "its range is not known"
    )


CHECKS = (release, gpus, on_driver, compat_package, on_system)
