"""Commands of the doctor for packages, by the table of platforms."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpuprov.doctor import packaging
from gpuprov.doctor.concerns.packages import _folder


def machine(system: str, release: str, database: str = "dpkg") -> Any:
    """Return a machine that says only which system it has."""
    os = SimpleNamespace(id=system, version=release, major=release.partition(".")[0])
    return SimpleNamespace(os=os, packages=SimpleNamespace(manager=database))


@pytest.mark.parametrize(
    ("seen", "command", "headers"),
    [
        (machine("debian", "12"), "apt install x y=5", "apt install linux-headers-6.1.0-1"),
        (machine("ubuntu", "24.04"), "apt install x y=5", "apt install linux-headers-6.1.0-1"),
        (machine("rocky", "9.6", "rpm"), "dnf install x y-5", "dnf install kernel-devel-6.1.0-1"),
        (machine("amzn", "2023", "rpm"), "dnf install x y-5", "dnf install kernel-devel-6.1.0-1"),
        (machine("templeos", "5", "rpm"), "dnf install x y-5", "dnf install kernel-devel-6.1.0-1"),
        (machine("linuxmint", "22"), "apt install x y=5", "apt install linux-headers-6.1.0-1"),
        (machine("x" * 99_999, "1" * 99_999), "apt install x y=5", "apt install linux-headers-6.1.0-1"),
    ],
    ids=["debian", "ubuntu", "rocky", "amazon", "unknown with rpm", "unknown with dpkg", "hostile"],
)
def test_packages_are_installed_by_the_systems_manager(seen: Any, command: str, headers: str) -> None:
    assert packaging.install(seen, "x", "y=5") == f"sudo {command}"
    assert packaging.headers(seen, "6.1.0-1") == f"sudo {headers}"


def test_the_toolkits_ldconfig_is_the_systems() -> None:
    assert packaging.platform_of(machine("ubuntu", "22.04")).ldconfig == "@/sbin/ldconfig.real"
    assert packaging.platform_of(machine("rocky", "9.6", "rpm")).ldconfig == "@/sbin/ldconfig"


@pytest.mark.parametrize(
    ("system", "release", "folder"),
    [
        ("ubuntu", "24.04", "ubuntu2404"),
        ("ubuntu", "23.10", "ubuntu2310"),
        ("debian", "12", "debian12"),
        ("rocky", "9.6", "rhel9"),
        ("sles", "16.0", "suse16"),
        ("templeos", "5", None),
        ("a" * 50_000, "1", None),
    ],
)
def test_the_folder_of_nvidias_repository(system: str, release: str, folder: str | None) -> None:
    assert _folder(machine(system, release)) == folder
