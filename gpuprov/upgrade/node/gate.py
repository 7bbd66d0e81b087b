"""The gate's collector, which the probe runs in addition: lease and available packages of a node."""

import os

from gpuprov_node import has_dpkg

from gpuprov.apply.node import lease
from gpuprov.probe.node.base import collector, find_program, names_in, read, run
from gpuprov.upgrade.node import packages, rpms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values


@collector(seconds=30)
def gate(parameters: "Values") -> "Any":
    """Return `offered` (sorted rows of name, version), `kept` (names of package files kept or in the cache)
    and `lease` (null: none); Failed if apt or dpkg fails.

    Also `awake_s`, the seconds since its init started, and `architecture`. Without `gate_packages` no
    repository is queried.
    """
    names = parameters["gate_packages"]
    offered = (
        run("apt-cache", "madison", "--", *names, seconds=25) if names and find_program("apt-cache") else ""
    )
    rows = {tuple(part.strip() for part in line.split("|")[:2]) for line in offered.splitlines()}
    kept = [name for folder in (packages.POOL, packages.ARCHIVES) for name in names_in(folder)]
    if names and not has_dpkg():
        rows, kept = set(rpms.offered(names)), [*kept, *rpms.cached()]
    return {
        "offered": sorted(rows),
        "kept": sorted(name for name in kept if name.endswith((".deb", ".rpm"))),
        "lease": lease.current(),
        "awake_s": _awake_s(),
        "architecture": run("dpkg", "--print-architecture").strip()
        if find_program("dpkg")
        else os.uname().machine,
    }


def _awake_s() -> float:
    """Return the seconds since the boot of a machine or container: proc(5), field 22 of stat."""
    begun = int(read("/proc/1/stat").rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return float(read("/proc/uptime").split()[0]) - begun
