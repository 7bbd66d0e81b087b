"""Variables of `package_pins`."""

from __future__ import annotations

from typing import Any

from gpuprov.lock import LockedGroup


def pins(group: LockedGroup) -> dict[str, Any]:
    """Everything that is held."""
    held: dict[str, str] = {}
    for _, component in group.components.each():
        held |= component.closure
    return {
        "package_pins_packages": held,
        "package_pins_patterns": group.components.driver.hold_patterns,
    }
