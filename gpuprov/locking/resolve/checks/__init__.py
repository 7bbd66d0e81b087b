"""The checks: every rule applied to one stack; each finding is a message with its source.

A check is a generator over (level, finding); none stops another, so a refusal names every violated rule.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuprov.locking.resolve.case import Case, Draft
from gpuprov.locking.resolve.checks import (
    compilers,
    cuda,
    dates,
    doubts,
    driver,
    fabric,
    frameworks,
    gpus,
    libraries,
    limits,
    rdma,
    security,
    storage,
    system,
)
from gpuprov.locking.resolve.checks.findings import Ruling

CHECKS = (
    *system.CHECKS,
    *dates.CHECKS,
    *driver.CHECKS,
    *gpus.CHECKS,
    *cuda.CHECKS,
    *compilers.CHECKS,
    *libraries.CHECKS,
    *frameworks.CHECKS,
    *fabric.CHECKS,
    *rdma.CHECKS,
    *storage.CHECKS,
    *limits.CHECKS,
    *security.CHECKS,
    *doubts.CHECKS,
)


def check_draft(case: Case, draft: Draft) -> Iterator[Ruling]:
    """Yield all findings about a complete draft, in the order of `CHECKS`: from the system up to the
    libraries.
    """
    for check in CHECKS:
        yield from check(case, draft)
