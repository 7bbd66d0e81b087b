"""Checks of frameworks: PyTorch, TensorFlow and JAX."""

from __future__ import annotations

from gpuprov.catalog import Version
from gpuprov.catalog.rules import driver as rules
from gpuprov.catalog.rules import frameworks
from gpuprov.locking.resolve.case import Case, Draft
from gpuprov.locking.resolve.checks import cuda as cuda_checks
from gpuprov.locking.resolve.checks.findings import Findings, reason, violation, warning

_AND_CUDA = Version("2.14")
"""The first TensorFlow with an extra that brings CUDA."""


def framework(case: Case, draft: Draft) -> Findings:
    """Check that the CUDA release in the framework's wheel runs on the driver and supports every GPU.

    A framework that the catalog does not know is a warning, a CUDA build that was not published a violation.
    """
    wanted = case.framework
    if wanted is None:
        return
    source = wanted.source or ("pypi",)
    if not wanted.known:
        yield warning(case, "framework-known", f"{wanted} is in no table: left unjudged", *source)
    if frameworks.build_exists(wanted) is False:
        builds = ", ".join(f"+cu{str(cuda).replace('.', '')}" for cuda in wanted.builds)
        yield violation(case, "framework-build", f"{wanted} was not published: there are {builds}", *source)
        return
    yield from _floor(case, wanted)
    if wanted.cuda is None:
        if wanted.known and wanted.build != "cpu":
            yield warning(case, "framework-known", f"which CUDA {wanted} brings was not read", *source)
        return
    yield from _framework_cuda(case, draft, wanted)


def _framework_cuda(case: Case, draft: Draft, wanted: frameworks.Framework) -> Findings:
    """Yield the findings about the CUDA release in a framework's wheel: a violation for a GPU without code,
    or a driver that is too old; a warning for compatibility or an unknown floor; else a reason.
    """
    cuda = wanted.cuda
    assert cuda is not None  # noqa: S101
    what = f"{wanted} brings CUDA {cuda}, which"
    for gpu in case.gpus:
        if wanted.name == "jax" and (gpu.last_cuda is None or cuda.minor <= gpu.last_cuda):
            continue  # it compiles for the GPU with any newer release of that CUDA
        if older := rules.older_binaries(case.catalog, gpu, cuda):
            yield cuda_checks.older(case, "framework-gpu", what, gpu, older)
        elif not rules.gpu_cuda_ok(gpu, cuda):
            yield cuda_checks.unsupported(case, "framework-gpu", what, gpu, cuda)
    if wanted.name == "torch" and cuda >= frameworks.TORCH_WITHOUT_OLD_GPUS.cuda:
        yield from _trimmed_wheel(case, wanted)
    toolkit = next((toolkit for toolkit in case.catalog.toolkits if toolkit.version.within(cuda)), None)
    way = rules.way(case.catalog, draft.driver, cuda, toolkit, case.gpus)
    what = f"CUDA {cuda} of {wanted} on driver {draft.driver}"
    if way == "native":
        yield reason(case, "framework-driver", f"{what}: native", *wanted.source)
    elif way == "minor":
        text = cuda_checks.minor_text(case, what, cuda, draft)
        yield warning(case, "framework-driver", text, "cuda-minor-compat", *wanted.source)
    elif way in ("forward", "forward?", "former") and "compat" not in case.absent:
        text = f"{what}: runs through cuda-compat-{str(cuda).replace('.', '-')} alone"
        yield warning(case, "framework-driver", text, "cuda-fwd-compat", *wanted.source)
    elif way == "unknown" and not cuda_checks.without_compat(case, draft, cuda):
        text = cuda_checks.unknown_text(case, what, cuda, draft)
        yield warning(case, "framework-driver", text, "cuda-minor-compat", *wanted.source)
    else:
        text = cuda_checks.too_old_text(case, what, cuda, draft)
        yield violation(case, "framework-driver", text, "cuda-minor-compat", *wanted.source)


def _floor(case: Case, wanted: frameworks.Framework) -> Findings:
    """Yield the violation for each GPU that is below the code in a framework's wheel, also of a release whose
    CUDA is unknown.
    """
    floor = None if wanted.build == "cpu" else frameworks.wheel_floor(case.catalog, wanted)
    of_cuda = f" for CUDA {wanted.cuda}" if wanted.cuda else ""
    for gpu in case.gpus:
        if floor and gpu.compute_capability < floor.min_compute_capability:
            text = (
                f"wheels of {wanted}{of_cuda} have code from compute capability "
                f"{floor.min_compute_capability} on, {gpu.id} has {gpu.compute_capability}"
            )
            yield violation(case, "framework-gpu", text, *floor.source)


def _trimmed_wheel(case: Case, wanted: frameworks.Framework) -> Findings:
    """Yield a warning for each GPU for which PyTorch's builds of that CUDA release may have no code."""
    trimmed = frameworks.TORCH_WITHOUT_OLD_GPUS
    floor = frameworks.wheel_floor(case.catalog, wanted)
    if wanted.version < trimmed.version or (floor and floor.cuda):
        return
    for gpu in case.gpus:
        if gpu.compute_capability < trimmed.capability and rules.gpu_cuda_ok(gpu, trimmed.cuda):
            text = f"{wanted} may hold no code for {gpu.id}: the +cu126 build is the one for Pascal and Volta"
            yield warning(case, "framework-gpu", text, "pypi", "pytorch-release-md")


def wheel(case: Case, draft: Draft) -> Findings:
    """Warn of a default wheel that has no CUDA for the architecture."""
    row = case.framework and frameworks.cpu_wheel(case.catalog, case.framework, case.arch)
    if row and case.framework:
        text = (
            f"the default wheel of {case.framework} for {case.arch} has no CUDA: take a build of the "
            f"framework's own index, such as +cu128"
        )
        yield warning(case, "framework-arch", text, *row.source)


def toolkit(case: Case, draft: Draft) -> Findings:
    """Warn of a stated toolkit or cuDNN whose libraries a wheel without own ones cannot use.

    A wheel loads them by name, and cuDNN refuses one that is older than that of the build.
    """
    wanted = case.framework
    if wanted is None or wanted.cuda is None or not wanted.of_host:
        return
    remedy = "install that one"
    if wanted.name == "jax":
        remedy = f"jax[cuda{wanted.cuda.major}] brings its own"
    elif wanted.version >= _AND_CUDA:
        remedy = "tensorflow[and-cuda] brings its own"
    if "cuda" in case.stated and draft.cuda and not frameworks.toolkit_fits(wanted, draft.cuda):
        text = f"{wanted} loads the libraries of CUDA {wanted.cuda}, which CUDA {draft.cuda} lacks: {remedy}"
        yield warning(case, "framework-toolkit", text, "tf-dlopen", *wanted.source)
    needed, stated = wanted.cudnn, case.stated.get("cudnn")
    if needed and stated and (stated.major != needed.major or stated.minor < needed.minor):
        text = f"{wanted} needs cuDNN {needed} or a newer one of {needed.major}, not {stated}: {remedy}"
        yield warning(case, "framework-toolkit", text, "tf-docs-2291", *wanted.source)


CHECKS = (framework, wheel, toolkit)
