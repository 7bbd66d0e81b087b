"""The resolver: finds a stack that works, or refuses with an explanation."""

from __future__ import annotations

from gpuprov.locking.resolve.answer import (
    Alternative,
    Answer,
    PackageSet,
    RuleFinding,
    Stack,
    Verdict,
    failed,
)
from gpuprov.locking.resolve.request import ABSENT, AUTO, Request
from gpuprov.locking.resolve.resolver import resolve

__all__ = [
    "ABSENT",
    "AUTO",
    "Alternative",
    "Answer",
    "PackageSet",
    "Request",
    "RuleFinding",
    "Stack",
    "Verdict",
    "failed",
    "resolve",
]
