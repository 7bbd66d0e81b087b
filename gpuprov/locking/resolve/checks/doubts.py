"""Check of doubts: contradictions between sources and the records of a stack."""

from __future__ import annotations

from collections.abc import Iterator

from gpuprov.catalog.records import Doubt, Doubts
from gpuprov.locking.resolve.case import Case, Draft
from gpuprov.locking.resolve.checks.findings import Findings, reason


def doubts(case: Case, draft: Draft) -> Findings:
    """Yield a reason for each doubt about GPUs, architectures, branch, toolkit and system that concerns these
    versions.
    """
    for named, keys in _rested_on(case, draft):
        for key in keys:
            doubt = case.catalog.doubts[key]
            if _concerns(doubt, draft):
                yield reason(case, "doubt", f"{named}: {doubt.text}", *doubt.source)


def _rested_on(case: Case, draft: Draft) -> Iterator[tuple[str, Doubts]]:
    """Yield the records of the stack, each with its doubts."""
    capabilities = {gpu.compute_capability for gpu in case.gpus}
    for gpu in case.gpus:
        yield gpu.id, gpu.doubts
    for row in case.catalog.tables["cuda.architectures"]:
        if row.compute_capability in capabilities:
            yield f"compute capability {row.compute_capability}", row.doubts
    if draft.branch:
        yield f"driver branch {draft.branch.branch}", draft.branch.doubts
    if draft.toolkit:
        yield f"CUDA {draft.toolkit.version}", draft.toolkit.doubts
    if case.system:
        yield case.system.title, case.system.doubts


def _concerns(doubt: Doubt, draft: Draft) -> bool:
    """Return whether a doubt concerns the draft: its driver and CUDA are within the bounds that the doubt
    states.
    """
    cuda = draft.cuda
    if doubt.below_driver is not None and draft.driver >= doubt.below_driver:
        return False
    if doubt.below_cuda is not None and (cuda is None or cuda >= doubt.below_cuda):
        return False
    return doubt.from_cuda is None or (cuda is not None and cuda >= doubt.from_cuda)


CHECKS = (doubts,)
