"""A checkable statement about a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Expectation:
    """One checkable statement.

    `role` names the role that can correct it; None for a missing GPU, or for a state that only a reboot
    (`reboot`) reaches. A mapping or a list in `expected` is compared item by item, and only items that differ
    are reported. A statement with `needs_driver` cannot be observed while nvidia-smi does not answer.
    """

    check: str
    expected: Any
    role: str | None
    reboot: bool = False
    severity: Severity = "error"
    needs_driver: bool = False
    subject: str | None = None
    """Further detail of the statement that the id lacks, such as the kernel of a module."""
