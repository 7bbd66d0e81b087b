"""What keeps versions where they are."""

from __future__ import annotations

from gpuprov.expectations.statement import Expectation
from gpuprov.model.lock import LockedGroup


def pins(group: LockedGroup) -> list[Expectation]:
    """The holds, and what unattended upgrades leave alone."""
    components = [component for _, component in group.components.each()]
    held = sorted({name for component in components for name in component.closure})
    patterns = list(dict.fromkeys(each for component in components for each in component.hold_patterns))
    return [
        Expectation("pins.hold", held, "package_pins"),
        Expectation("pins.unattended", patterns, "package_pins"),
    ]
