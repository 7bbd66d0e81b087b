"""Variables and expectations of profilers, and of access to a GPU's counters."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.components import closure, unwanted
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import fails

OVERRULED = (
    *fails(
        "profiling_counters",
        "profiling.counters",
        "a later file of modprobe.d",
        "the kernel's command line (nvidia.NVreg_RestrictProfilingToAdminUsers)",
    ),
    *fails("profiling_tools", "pins.hold", "APT::Ignore-Hold in apt.conf.d"),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected profilers if locked, and, if stated, whether all users may read a GPU's counters.

    The counters are expected in the files, and after a reboot in the driver.
    """
    role = "profiling_tools"
    tools, counters = group.components.profiling_tools, group.setting("profiling_counters")
    found = [Expectation("profiling.packages", tools.closure, role)] if tools else []
    if counters is not None:
        everybody = "everybody" if counters else "root"
        found.append(Expectation("profiling.counters", everybody, role))
        found.append(Expectation("profiling.counters_now", everybody, None, reboot=True, needs_driver=True))
    return found


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return packages, and whether all users may read the counters; None if that is not stated."""
    return {
        "profiling_tools_packages": closure(group.components.profiling_tools),
        "profiling_tools_unwanted": unwanted(group, "profiling_tools"),
        "profiling_tools_counters": group.setting("profiling_counters"),
    }
