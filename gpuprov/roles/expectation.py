"""One checkable statement about a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Expectation:
    """One checkable statement.

    `role` is None where no role can mend it: a missing GPU, or what only a reboot (`reboot`) brings.
    A mapping or a list in `expected` is compared item by item, and only items that
    differ are reported. What `needs_driver` cannot be observed while nvidia-smi has no answer.
    """

    check: str
    expected: Any
    role: str | None
    reboot: bool = False
    severity: Severity = "error"
    needs_driver: bool = False
    subject: str | None = None
    """What the statement is about, where the id does not say: the kernel of a module."""
