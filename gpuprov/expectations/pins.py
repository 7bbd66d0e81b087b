"""What keeps versions where they are."""

from __future__ import annotations

from gpuprov.expectations.statement import Expectation
from gpuprov.lock import LockedGroup


def pins(group: LockedGroup) -> list[Expectation]:
    """The holds, and what unattended upgrades leave alone."""
    held = sorted(name for _, component in group.components.each() for name in component.closure)
    return [
        Expectation("pins.hold", held, "package_pins"),
        Expectation("pins.unattended", group.components.driver.hold_patterns, "package_pins"),
    ]
