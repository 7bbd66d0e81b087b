"""Result of a step of a repair."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Result:
    """Result of a step: node → why it failed, and data of nodes that succeeded.

    Attributes:
        busy: node → the jobs that prevented a rung, although the wait before it had ended.
    """

    failed: dict[str, str]
    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    busy: dict[str, str] = field(default_factory=dict)
