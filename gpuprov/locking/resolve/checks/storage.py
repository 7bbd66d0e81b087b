"""Checks of GPUDirect Storage against driver, flavour, kernel and repository."""

from __future__ import annotations

from gpuprov.catalog.rules import storage as rules
from gpuprov.locking.resolve.case import Case, Draft
from gpuprov.locking.resolve.checks.findings import Findings, reason, violation, warning
from gpuprov.locking.resolve.checks.system import failed_build
from gpuprov.locking.resolve.packages import gds_known


def gds(case: Case, draft: Draft) -> Findings:
    """Check that nvidia-fs can be built and loaded with the driver, if the request has it.

    A flavour, a repository and a kernel that it cannot have are violations, a GPU that the vendor does not
    name is a warning. The reasons state the order of both modules, and that newer CUDA may need no nvidia-fs.
    """
    if not case.gds:
        return
    release = case.gds_release
    what = f"nvidia-fs {release}" if release else "the newest nvidia-fs"
    if not rules.flavour_fits(release, draft.flavour):
        text = (
            f"{what} needs the open modules: from {rules.OPEN_FROM} on it uses symbols that the proprietary "
            "ones may not give it"
        )
        yield violation(case, "gds-flavour", text, *rules.SOURCE, "fs-48")
    yield from _compiled(case, draft, what)
    for gpu in case.gpus:
        if not rules.vendor_supports(gpu):
            text = f"{gpu.id}: the vendor supports GPUDirect Storage on data-centre and workstation boards"
            yield warning(case, "gds-gpu", text, *rules.SOURCE)
    for issue in rules.failed_builds(case.catalog.known_issues, release) if release else ():
        yield from failed_build(case, issue, what)
    text = (
        f"{what} is compiled after NVIDIA's modules, whose symbols it reads, and loaded after them; "
        "a new driver needs a new build of it"
    )
    yield reason(case, "gds-order", text, "gds-dkms", "fs-48")
    if draft.cuda and draft.cuda >= rules.WITHOUT_FROM:
        text = (
            f"CUDA {draft.cuda}: cuFile also has a mode without nvidia-fs (P2PDMA), on kernels that have it"
        )
        yield reason(case, "gds-p2pdma", text, "gds-install")


def _compiled(case: Case, draft: Draft, what: str) -> Findings:
    """Yield a violation if the driver's repository lacks nvidia-fs, or the node cannot compile it."""
    if case.system is not None and not gds_known(case, draft):
        place = "its own archive" if draft.repository == "distribution" else "NVIDIA's repository"
        text = f"no nvidia-fs is known for {case.system.title} with the driver from {place}"
        yield violation(case, "gds-packages", text, "gds-docs")
    if case.precompiled:
        text = f"{what} is compiled from the driver's sources, which precompiled modules do not have"
        yield violation(case, "gds-module-build", text, "gds-35")


CHECKS = (gds,)
