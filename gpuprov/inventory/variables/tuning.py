"""Variables of `system_tuning`."""

from __future__ import annotations

from typing import Any

from gpuprov.expectations.tuning import DEBUGGING, environment, limits, sysctls
from gpuprov.model.lock import LockedGroup


def tuning(group: LockedGroup) -> dict[str, Any]:
    """Everything that is stated; what is not is taken away where this role set it."""
    stated = group.setting("tuning") or {}
    return {
        "system_tuning_limits": limits(stated),
        "system_tuning_sysctl": sysctls(stated),
        "system_tuning_hugepages": stated.get("transparent_hugepages") or "unset",
        "system_tuning_governor": stated.get("governor"),
        "system_tuning_environment": environment(stated),
        "system_tuning_unwanted_variables": list(DEBUGGING),
    }
