"""Checks of the system and its package manager."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from gpuprov.roles.preflight import is_system

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node

OS_RELEASE = "cat /etc/os-release 2>/dev/null || cat /usr/lib/os-release"
"""Command that prints os-release(5): the first file is a link, which need not exist."""
REBOOT_FLAG = "/run/reboot-required"
"""File that packages create if a reboot is needed; `.pkgs` lists them."""


@pytest.mark.check("system.os", "cat /etc/os-release")
def test_os_is_the_locked_one(host: Node, expected: str) -> None:
    """Check distribution and release, such as `ubuntu24.04`; Rocky Linux 9.6 is `rhel9`."""
    text = host.run(OS_RELEASE).stdout
    stated = {name: value.strip("\"' ") for name, value in re.findall(r"(?m)^(ID|VERSION_ID)=(.*)$", text)}
    name, release = stated.get("ID", "").lower(), stated.get("VERSION_ID", "")
    assert (expected if is_system(expected, name, release) else name + release) == expected


@pytest.mark.check("system.arch")
def test_architecture_is_the_locked_one(host: Node, expected: str) -> None:
    """Check the machine's architecture, as `uname -m` prints it."""
    assert host.system_info.arch == expected


@pytest.mark.check("dpkg.consistent", "dpkg --audit")
def test_dpkg_has_nothing_half_done(host: Node, expected: list[str]) -> None:
    """Check that dpkg has no package that is incompletely installed or removed."""
    assert host.packages.half_done == expected


@pytest.mark.check("reboot.not_required", f"ls -l {REBOOT_FLAG}*")
def test_no_reboot_is_required(host: Node, expected: list[str]) -> None:
    """Check that no package requires a reboot; otherwise their names are the actual value."""
    asking = host.run("cat %s.pkgs", REBOOT_FLAG).stdout.split() or ["a reboot"]
    assert (sorted(set(asking)) if host.file(REBOOT_FLAG).exists else []) == expected
