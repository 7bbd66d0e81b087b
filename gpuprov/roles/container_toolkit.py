"""Variables and expectations of NVIDIA's container toolkit."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.components import closure, unwanted
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import BY_HAND, OTHER_FILE, fails, mends

CDI_UNIT = "nvidia-cdi-refresh.path"
UNITS = {"container_toolkit.cdi": CDI_UNIT}
FORERUNNERS = ("nvidia-docker2", "nvidia-docker", "nvidia-container-runtime")
"""Packages that the toolkit replaced; removed in 1.15.0 (its changelog)."""

OVERRULED = (
    *mends("container_toolkit", "container_toolkit.cdi", BY_HAND),
    *fails("container_toolkit", "container_toolkit.cdi", OTHER_FILE),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected packages, no replaced packages, and the CDI refresh unit if the lock states CDI.

    Empty if the toolkit is not locked.
    """
    toolkit = group.components.container_toolkit
    if toolkit is None:
        return []
    role = "container_toolkit"
    stated = [
        Expectation("container_toolkit.packages", toolkit.closure, role),
        Expectation("container_toolkit.forerunners", [], role),
    ]
    cdi = (group.setting("containers") or {}).get("cdi")
    if cdi is not None:
        stated.append(Expectation("container_toolkit.cdi", "enabled" if cdi else "disabled", role))
    return stated


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return packages, and whether GPUs are also given by the Container Device Interface (None: unstated)."""
    toolkit = group.components.container_toolkit
    stated = group.setting("containers") or {}
    return {
        "container_toolkit_packages": closure(toolkit),
        "container_toolkit_unwanted": unwanted(group, "container_toolkit"),
        "container_toolkit_cdi": stated.get("cdi") if toolkit else None,
    }
