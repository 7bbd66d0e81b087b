"""Processor time of lab nodes and of the commands that act on them."""

from __future__ import annotations

import resource
from pathlib import Path

from gpuprov_lab import Lab

ACCOUNTS = ("/sys/fs/cgroup/cpuacct/gpuprov-lab", "/sys/fs/cgroup/gpuprov-lab")


def processor_s(lab: Lab) -> float:
    """Return the processor seconds of a lab's nodes and of all ended children."""
    ours = resource.getrusage(resource.RUSAGE_CHILDREN)
    groups = [path for root in ACCOUNTS for path in Path(root).glob(f"*{lab.name}*")]
    return ours.ru_utime + ours.ru_stime + sum(map(_used, groups))


def _used(group: Path) -> float:
    """Return the processor seconds of a control group and all below it.

    Version 1 counts nanoseconds, version 2 microseconds.
    """
    if (group / "cpuacct.usage").exists():
        return int((group / "cpuacct.usage").read_text()) / 1e9
    stated = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    return int(stated["usage_usec"]) / 1e6
