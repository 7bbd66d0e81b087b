"""Checks of the system and its package manager."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node

REBOOT_FLAG = "/run/reboot-required"


@pytest.mark.check("system.os", "cat /etc/os-release")
def test_os_is_the_locked_one(host: Node, expected: str) -> None:
    system = host.system_info
    full, major = (
        system.distribution + release for release in (system.release, system.release.split(".")[0])
    )
    assert (major if major == expected else full) == expected


@pytest.mark.check("system.arch")
def test_architecture_is_the_locked_one(host: Node, expected: str) -> None:
    assert host.system_info.arch == expected


@pytest.mark.check("dpkg.consistent", "dpkg --audit")
def test_dpkg_has_nothing_half_done(host: Node, expected: list[str]) -> None:
    assert host.apt.half_done == expected


@pytest.mark.check("reboot.not_required", f"ls -l {REBOOT_FLAG}*")
def test_no_reboot_is_required(host: Node, expected: list[str]) -> None:
    asking = host.run("cat %s.pkgs", REBOOT_FLAG).stdout.split() or ["a reboot"]
    assert (sorted(set(asking)) if host.file(REBOOT_FLAG).exists else []) == expected
