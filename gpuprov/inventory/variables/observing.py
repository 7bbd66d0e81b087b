"""Variables of `profiling_tools` and `monitoring`."""

from __future__ import annotations

from typing import Any

from gpuprov.expectations import everything_else
from gpuprov.expectations.observing import textfile, textfile_path
from gpuprov.inventory.variables.unwanted import unwanted
from gpuprov.model.lock import LockedGroup


def observing(group: LockedGroup) -> dict[str, Any]:
    """Packages, counters, and the text that Prometheus is told."""
    components = group.components
    tools, exporter, dcgm = components.profiling_tools, components.node_exporter, components.dcgm
    path = textfile_path(group)
    return {
        "profiling_tools_packages": tools.closure if tools else {},
        "profiling_tools_unwanted": unwanted(group, "profiling_tools"),
        "profiling_tools_counters": group.setting("profiling_counters"),
        "monitoring_packages": exporter.closure if exporter else {},
        "monitoring_dcgm_packages": dcgm.closure if dcgm else {},
        "monitoring_unwanted": unwanted(group, "node_exporter"),
        "monitoring_dcgm_unwanted": unwanted(group, "dcgm"),
        "monitoring_textfile": path,
        "monitoring_text": textfile(group, everything_else(group)) if path else "",
    }
