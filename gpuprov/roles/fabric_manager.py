"""Variables and expectations of the fabric manager, whose packages change together with the driver's."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.components import version
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import BY_HAND, CONDITION, OTHER_FILE, OTHER_PROGRAM, fails, mends

FABRIC_UNIT = "nvidia-fabricmanager.service"
UNITS = {"fabric_manager.unit": FABRIC_UNIT}

OVERRULED = (
    *mends("fabricmanager", "fabric_manager.unit", BY_HAND),
    *fails("fabricmanager", "fabric_manager.unit", OTHER_FILE, OTHER_PROGRAM, CONDITION),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected packages that change with the driver (installed by its role), the unit and the
    fabric.

    The unit and the fabric are expected only if the fabric manager is locked.
    """
    moving = [each for name, each in group.components.with_driver() if name != "driver"]
    packages = {name: full for each in moving for name, full in each.closure.items()}
    stated = [Expectation("fabric_manager.packages", packages, "nvidia_driver")] if packages else []
    if group.components.fabricmanager is None:
        return stated
    role = "fabric_manager"
    return [
        *stated,
        Expectation("fabric_manager.unit", "enabled", role, subject=group.components.fabricmanager.version),
        Expectation("fabric_manager.fabric", "Completed", role, needs_driver=True),
    ]


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return the fabric manager's version that has to run; None if it is not locked."""
    return {"fabric_manager_version": version(group.components.fabricmanager)}
