"""Variables of `package_pins`."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup


def pins(group: LockedGroup) -> dict[str, Any]:
    """Everything that is held."""
    components = [component for _, component in group.components.each()]
    held = {name: full for component in components for name, full in component.closure.items()}
    patterns = dict.fromkeys(each for component in components for each in component.hold_patterns)
    return {
        "package_pins_packages": held,
        "package_pins_patterns": list(patterns),
    }
