"""Check of security bulletins: why a driver was preferred to others."""

from __future__ import annotations

from gpuprov.catalog.rules.security import exposure
from gpuprov.catalog.security_words import exposed_text, fix_text
from gpuprov.locking.resolve.case import Case, Draft
from gpuprov.locking.resolve.checks.findings import Findings, reason

PREFERRED = "driver-security"


def preferred(case: Case, draft: Draft) -> Findings:
    """Yield a reason for each driver that the policy prefers, and that was left out for its bulletins."""
    for driver in draft.passed_over:
        if found := exposure(case.catalog, "driver", str(driver)):
            text = f"driver {draft.driver}: {exposed_text(found)}; {fix_text(found)}"
            sources = dict.fromkeys(key for each in found.found for key in each.bulletin.source)
            yield reason(case, PREFERRED, text, *sources)


CHECKS = (preferred,)
