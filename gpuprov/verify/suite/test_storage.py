"""Checks of scratch file systems, mounted now and at boot, their read-ahead, and network storage clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuprov.untrusted.parsing import whole_number
from gpuprov.verify.readings import not_applied

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node

RULES = "systemd-analyze --no-pager cat-config udev/rules.d"
FSTAB = "grep -v '^#' /etc/fstab"


@pytest.mark.check("scratch.filesystem", "findmnt --real", "lsblk --fs")
def test_no_other_file_system_is_in_the_place_of_scratch(host: Node, expected: dict[str, str]) -> None:
    """Check that a mounted scratch folder has the expected type of file system."""
    mounted = host.server.mounted
    assert {mount: mounted.get(mount, kind) for mount, kind in expected.items()} == expected


@pytest.mark.check("scratch.mounted", "findmnt --real", "lsblk --fs")
def test_scratch_is_mounted(host: Node, expected: dict[str, str]) -> None:
    """Check that each scratch folder is mounted with the expected type of file system."""
    mounted = host.server.mounted
    assert {mount: mounted.get(mount) for mount in expected} == expected


@pytest.mark.check("scratch.at_boot", FSTAB)
def test_scratch_is_mounted_at_boot_by_what_does_not_change(host: Node, expected: dict[str, str]) -> None:
    """Check that fstab mounts each scratch folder by UUID, and that no mount unit overrides that."""
    sources = {
        mount: host.run("findmnt --fstab --noheadings --output SOURCE %s", mount) for mount in expected
    }
    units = {
        mount: host.run("systemctl show --property=FragmentPath --value %s", mount) for mount in expected
    }
    theirs = {mount: unit.stdout.strip() for mount, unit in units.items() if "/generator/" not in unit.stdout}
    seen = {mount: theirs.get(mount) or source.stdout.strip() or None for mount, source in sources.items()}
    assert {
        mount: "by UUID" if (text or "").startswith("UUID=") else text for mount, text in seen.items()
    } == expected


@pytest.mark.check("scratch.read_ahead")
def test_scratch_is_read_ahead(host: Node, expected: dict[str, int]) -> None:
    """Check the read-ahead of each scratch file system's device in KiB; 0 if it cannot be read."""
    sectors = {
        mount: host.run("blockdev --getra $(findmnt --noheadings --output SOURCE --mountpoint %s)", mount)
        for mount in expected
    }
    assert {mount: int(said.stdout or 0) // 2 for mount, said in sectors.items()} == expected


@pytest.mark.check("scratch.read_ahead_at_boot", f"{RULES} | grep read_ahead_kb")
def test_next_boot_sets_the_read_ahead(host: Node, expected: dict[str, int]) -> None:
    """Check the read-ahead in KiB that udev's rules set for each scratch file system; None if none does."""
    rules = [
        line for line in host.run(RULES).stdout.splitlines() if "read_ahead_kb}=" in line and line[0] != "#"
    ]
    seen = {}
    for mount in expected:
        source = host.run("findmnt --fstab --noheadings --output SOURCE %s", mount).stdout.strip()
        condition = f'ENV{{ID_FS_UUID}}=="{source.removeprefix("UUID=")}"'
        values = [
            line.partition('read_ahead_kb}="')[2].partition('"')[0] for line in rules if condition in line
        ]
        seen[mount] = whole_number(values[-1]) if values else None
    assert (not_applied(host, "scratch.read_ahead_at_boot") or seen) == expected


@pytest.mark.check("storage.client_options", "modprobe --showconfig | grep -E '^options (sunrpc|lnet) '")
def test_modules_of_clients_have_their_options(host: Node, expected: dict[str, str]) -> None:
    """Check the last value of each module's option in modprobe's configuration; None without one."""
    seen: dict[str, str | None] = dict.fromkeys(expected)
    for line in host.run("modprobe --showconfig | grep '^options '").stdout.splitlines():
        _, module, *words = line.split()
        for option, _, value in (word.partition("=") for word in words):
            if f"{module}.{option}" in seen:
                seen[f"{module}.{option}"] = value
    assert seen == expected


@pytest.mark.check("storage.clients")
def test_clients_are_there(host: Node, expected: list[str]) -> None:
    """Check that the packages of the network storage clients are installed."""
    assert [name for name in expected if name in host.packages.versions] == expected
