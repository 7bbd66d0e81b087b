"""Checks of the users who may read a GPU's counters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from gpuprov.verify.readings import WHO, readers

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node

OPTIONS = "modprobe --showconfig | grep RestrictProfilingToAdminUsers"


@pytest.mark.check("profiling.counters", OPTIONS)
def test_counters_are_for_whom_the_lock_says(host: Node, expected: str) -> None:
    """Check the users whom modprobe's options let read counters."""
    assert readers(host.run(OPTIONS).stdout) == expected


@pytest.mark.check("profiling.counters_now", "cat /proc/driver/nvidia/params")
def test_loaded_driver_gives_them_so(host: Node, expected: str) -> None:
    """Check the users whom the loaded driver lets read counters."""
    found = re.search(r"RmProfilingAdminOnly: (\d)", host.run("cat /proc/driver/nvidia/params").stdout)
    assert WHO.get(found and found[1], "not known") == expected
