"""Checks of cuDNN and NCCL."""

from __future__ import annotations

from gpuprov.catalog import Version
from gpuprov.catalog.rules import driver as rules
from gpuprov.catalog.rules import libraries
from gpuprov.locking.resolve.case import Case, Draft
from gpuprov.locking.resolve.checks.findings import Findings, Ruling, reason, violation, warning


def cudnn(case: Case, draft: Draft) -> Findings:
    """Check that a build of cuDNN exists for the CUDA major, and runs on the driver.

    Both are violations, except that a build that only lacks a known wheel is a warning. A release in no
    list is a warning.
    """
    if draft.cudnn is None:
        return
    if "cudnn" in draft.chosen:
        yield reason(
            case,
            "cudnn-newest",
            f"cuDNN {draft.cudnn}: the newest that fits CUDA and every GPU",
            "cudnn-matrix",
        )
    elif draft.cudnn not in case.catalog.cudnn_by_version:
        yield warning(
            case, "cudnn-known", f"cuDNN {draft.cudnn} is in no list of releases", "pypi", "cudnn-matrix"
        )
    if draft.cuda is None:
        return
    major = draft.cuda.major
    if libraries.cudnn_build_exists(case.catalog, draft.cudnn, major) is False:
        rows = [row for row in case.catalog.tables["cudnn.builds"] if row.cuda_major == major]
        until = f"to {rows[-1].last}" if rows[-1].last else "on"
        text = f"cuDNN {draft.cudnn} has no build for CUDA {major}: those run from {rows[0].first} {until}"
        yield violation(case, "cudnn-build", text, *rows[-1].source)
    elif _wheel_missing(case, draft, major):
        text = f"cuDNN {draft.cudnn} has no wheel for CUDA {major}; its packages were not listed"
        yield warning(case, "cudnn-build", text, "pypi")
    floor = libraries.cudnn_min_driver(case.catalog, draft.cudnn, major)
    if floor and draft.driver < floor and draft.compat is None and _runs(case, draft):
        text = f"cuDNN for CUDA {major} needs driver {floor} or newer, not {draft.driver}"
        yield violation(case, "cudnn-driver", text, "cudnn-matrix")


def _wheel_missing(case: Case, draft: Draft, major: int) -> bool:
    """Return whether neither a wheel nor a Debian package of cuDNN was seen for the CUDA major.

    False if no wheel of the release was seen at all, or the release is in no list.
    """
    record = case.catalog.cudnn_by_version.get(draft.cudnn) if draft.cudnn else None
    if record is None or not record.wheel_cuda_majors:
        return False
    return major not in record.wheel_cuda_majors and all(
        build.major != major for build in record.deb_builds_seen
    )


def _runs(case: Case, draft: Draft) -> bool:
    """Return whether CUDA runs on the driver without a compat package.

    If not, CUDA's own check reports that, with the same floor.
    """
    assert draft.cuda is not None  # noqa: S101
    way = rules.way(case.catalog, draft.driver, draft.cuda, draft.toolkit, case.gpus)
    return way in ("native", "minor")


def cudnn_gpus(case: Case, draft: Draft) -> Findings:
    """Check that cuDNN contains code for every GPU: a violation if not, a warning if its support matrix does
    not decide.
    """
    if draft.cudnn is None:
        return
    floor = libraries.cudnn_release_floor(case.catalog, draft.cudnn)
    for gpu in case.gpus:
        named = f"{gpu.id} (compute capability {gpu.compute_capability})"
        if not libraries.cudnn_gpu_ok(case.catalog, draft.cudnn, gpu):
            text = (
                f"cuDNN {draft.cudnn} has dropped {named}: 9.10.2 is the last for Maxwell, Pascal and Volta"
            )
            yield violation(case, "cudnn-gpu", text, "cudnn-911-note", "cudnn-matrix")
        elif floor and gpu.compute_capability < floor:
            text = f"cuDNN {draft.cudnn} starts at compute capability {floor}; {named} is below"
            yield violation(case, "cudnn-gpu", text, "cudnn-matrix")
        elif not floor and gpu.architecture == "Kepler":
            text = f"whether cuDNN {draft.cudnn} still has {named} was not read: 8.2 has, 8.9.6 has not"
            yield warning(case, "cudnn-gpu", text, "cudnn-matrix")
        elif (
            gpu.compute_capability > rules.HOPPER
            and draft.cudnn.minor <= libraries.LAST_CUDNN_WITHOUT_BLACKWELL
        ):
            text = f"the matrix of cuDNN {draft.cudnn.minor} ends at compute capability 9.0; {named} is above"
            yield warning(case, "cudnn-gpu", text, "cudnn-matrix")


def nccl(case: Case, draft: Draft) -> Findings:
    """Check that NCCL's build has the toolkit's CUDA major, and code for driver and GPUs.

    A release in no list is a warning; without CUDA only the build is checked against the driver.
    """
    if draft.nccl is None:
        return
    build = draft.nccl_build
    named = f"NCCL {draft.nccl}" + (f"+cuda{build}" if build else "")
    if "nccl" in draft.chosen:
        yield reason(
            case, "nccl-newest", f"{named}: the newest build that driver and every GPU take", "nccl-repo"
        )
    elif draft.nccl not in case.catalog.nccl_by_version:
        yield warning(case, "nccl-known", f"NCCL {draft.nccl} is in no list of releases", "nccl-repo", "pypi")
    if draft.cuda is not None:
        yield from _nccl_major(case, draft, named, draft.cuda.major)
    if build is not None:
        yield from _nccl_published(case, draft.nccl, build)
        yield from _nccl_build(case, draft, named)


def _nccl_published(case: Case, nccl: Version, build: Version) -> Findings:
    """Yield the finding about an NCCL build that is not among those seen of the release: a violation if the
    whole list was read, else a warning.
    """
    record = case.catalog.nccl_by_version.get(nccl)
    builds = libraries.nccl_builds(record, case.system) if record else ()
    if record is None or not builds or build in builds:
        return
    there = ", ".join(f"+cuda{each}" for each in builds)
    if record.builds_complete:
        text = f"NCCL {nccl}+cuda{build} was not published: there are {there}"
        yield violation(case, "nccl-build", text, *record.source)
    else:
        where = f" for {case.system.title}" if case.system else ""
        text = (
            f"NCCL {nccl}+cuda{build} was not seen{where}, only {there}: "
            "`gpuprov lock` looks in the repository's index"
        )
        yield warning(case, "nccl-build", text, *record.source)


def _nccl_major(case: Case, draft: Draft, named: str, major: int) -> Findings:
    """Yield the violations of a build for another CUDA major, of one that does not exist, and of GPUs
    without code.
    """
    assert draft.nccl is not None  # noqa: S101
    build = draft.nccl_build
    if build is not None and build.major != major:
        yield _other_major(case, draft, named, build)
    elif libraries.nccl_build_exists(case.catalog, draft.nccl, major) is False:
        row = next(row for row in case.catalog.tables["nccl.builds"] if row.cuda_major == major)
        until = f"to {row.last}" if row.last else f"from {row.first} on"
        text = f"NCCL {draft.nccl} has no build for CUDA {major}: those run {until}"
        yield violation(case, "nccl-build", text, *row.source)
    built_for = build.major if build else major
    for gpu in case.gpus:
        if not libraries.nccl_gpu_ok(case.catalog, draft.nccl, built_for, gpu):
            text = (
                f"{named} for CUDA {built_for} has no code for {gpu.id} (compute capability "
                f"{gpu.compute_capability})"
            )
            yield violation(case, "nccl-gpu", text, "nccl-repo")


def _other_major(case: Case, draft: Draft, named: str, build: Version) -> Ruling:
    """Return the finding for a build of another CUDA major than the toolkit's.

    A warning for a build for the previous major, which works in addition to the toolkit on a driver that
    supports both; else a violation.
    """
    assert draft.cuda is not None  # noqa: S101
    text = f"{named} is built for CUDA {build.major}, and the toolkit is CUDA {draft.cuda}"
    knows = draft.branch is not None and draft.branch.native_cuda.major >= draft.cuda.major
    if build.major == draft.cuda.major - 1 and knows:
        meaning = (
            f"it serves programs that bring CUDA {build.major} with them; what is built with this toolkit "
            f"takes the build for CUDA {draft.cuda.major}"
        )
        return warning(case, "nccl-cuda-major", f"{text}: {meaning}", "nccl-ptx-note")
    return violation(case, "nccl-cuda-major", f"{text}: the majors must agree", "nccl-ptx-note")


def _nccl_build(case: Case, draft: Draft, named: str) -> Findings:
    """Yield the finding about an NCCL build on the driver.

    A build for a CUDA major that the driver does not run is a violation. One for a newer minor of a major
    that it runs is a warning, with the recorded failure if there is one: it runs where it has code for the
    GPU (minor-version compatibility). A compat package of that CUDA release or a newer one prevents both.
    """
    build, branch = draft.nccl_build, draft.branch
    assert build is not None  # noqa: S101
    if draft.compat is not None and draft.compat >= build:
        return
    if branch and build.major > branch.native_cuda.major:
        floor = rules.min_driver(case.catalog, build.major)
        needed = f"driver {floor} or newer" if floor else f"a driver that runs CUDA {build.major}"
        text = f"{named} needs {needed}; {draft.driver} runs CUDA {branch.native_cuda.major} at most"
        yield violation(case, "nccl-driver", text, "cuda-minor-compat")
        return
    for failure in case.catalog.tables["nccl.failures"]:
        if (failure.version, failure.build) == (draft.nccl, build) and draft.driver.major in failure.branches:
            text = (
                f"{named} was seen to fail on driver branch {draft.driver.major} ({failure.effect}) where it "
                f"has no code for the GPU: {failure.remedy}"
            )
            yield warning(case, "nccl-driver", text, *failure.source)
            return
    if branch and libraries.nccl_needs_newer_driver(build, branch.native_cuda):
        text = (
            f"{named} is newer than CUDA {branch.native_cuda} of driver branch {branch.branch}: "
            "it works where the build holds code for the GPU itself"
        )
        yield warning(case, "nccl-driver", text, "nccl-ptx-note")


CHECKS = (cudnn, cudnn_gpus, nccl)
