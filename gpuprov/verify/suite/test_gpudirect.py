"""Checks of the modules of GPUDirect: those that a boot loads, and those that are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuprov.roles.gpudirect import FS_MODULE, PEERMEM_MODULE
from gpuprov.untrusted import lines_of
from gpuprov.verify.readings import not_applied

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node

LISTED = "systemd-analyze --no-pager cat-config modules-load.d"
OFF = (
    "modprobe --showconfig | grep -E"
    " '^(blacklist nvidia[_-](fs|peermem)|install nvidia[_-](fs|peermem) (/usr)?/bin/(false|true))'"
)
LOADED = "cut -d' ' -f1 /proc/modules"


@pytest.mark.check("gpudirect.at_boot", f"{LISTED} | grep nvidia", OFF)
def test_next_boot_loads_the_modules(host: Node, expected: list[str]) -> None:
    """Check the modules of GPUDirect that systemd loads by modules-load.d, without blacklisted ones."""
    if expected:
        assert not_applied(host, "gpudirect.at_boot") is None
    off = {_name(line.split()[1]) for line in lines_of(host.run(OFF).stdout) if len(line.split()) > 1}
    listed = [_name(line.strip()) for line in lines_of(host.run(LISTED).stdout)]
    ours = dict.fromkeys(name for name in listed if name in (PEERMEM_MODULE, FS_MODULE))
    assert [name for name in ours if name not in off] == expected


@pytest.mark.check(
    "gpudirect.loaded", "lsmod | grep -E 'nvidia|ib_core'", "journalctl -k | grep -E 'peermem|nvidia.fs'"
)
def test_modules_are_loaded(host: Node, expected: list[str]) -> None:
    """Check that the kernel has loaded the modules of GPUDirect."""
    loaded = set(lines_of(host.run(LOADED).stdout))
    assert [name for name in expected if name in loaded] == expected


def _name(text: str) -> str:
    """Return the kernel's own spelling of a module's name."""
    return text.replace("-", "_")
