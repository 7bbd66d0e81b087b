"""Names of systems, architectures and versions in the spellings that users write."""

from __future__ import annotations

import pytest

from gpuprov.catalog import load
from gpuprov.catalog.identity import driver_text, find_arch, find_system, library_text
from gpuprov.errors import InvalidInput

CATALOG = load()


@pytest.mark.parametrize(
    ("name", "system"),
    [
        ("ubuntu22.04", "ubuntu22.04"),
        ("Ubuntu 22.04.3 LTS", "ubuntu22.04"),
        ("ubuntu-24.04", "ubuntu24.04"),
        ("ubuntu2404", "ubuntu24.04"),
        ("noble", "ubuntu24.04"),
        ("debian 12.5", "debian12"),
        ("bookworm", "debian12"),
        ("Debian GNU/Linux 13", "debian13"),
        ("rhel 9.4", "rhel9"),
        ("Red Hat Enterprise Linux 8.10", "rhel8"),
        ("rocky9.4", "rhel9"),
        ("almalinux8", "rhel8"),
        ("Oracle Linux 9", "rhel9"),
        ("centos-stream9", "rhel9"),
        ("centos7", "rhel7"),
        ("al2023", "amzn2023"),
        ("amzn2023", "amzn2023"),
        ("Amazon Linux 2023", "amzn2023"),
        ("sles15", "sles15"),
        ("SLES 15 SP6", "sles15"),
        ("opensuse", "opensuse15"),
        ("opensuse-leap-15.6", "opensuse15"),
        ("fedora", "fedora44"),
        ("fedora42", "fedora42"),
        ("kylin", "kylin11"),
        ("KylinOS V10", "kylin10"),
        ("azl3", "azl3"),
        ("Azure Linux 3.0", "azl3"),
    ],
)
def test_system(name: str, system: str) -> None:
    """Check the system of the catalog that is found for a spelling."""
    found = find_system(CATALOG, name)
    assert found is not None
    assert found.id == system


@pytest.mark.parametrize("name", ["ubuntu23.10", "fedora41", "debian14", "windows11", "alpine3.19", "amzn2"])
def test_systems_that_nobody_serves_are_understood(name: str) -> None:
    assert find_system(CATALOG, name) is None


@pytest.mark.parametrize("name", ["ubunut22.04", "", "ubuntu", "templeos", "9.4"])
def test_unknown_systems_list_what_is_near(name: str) -> None:
    with pytest.raises(InvalidInput, match="expected one of"):
        find_system(CATALOG, name)


def test_architectures() -> None:
    """Check that each spelling of an architecture is known, and an unknown one is refused."""
    assert {find_arch(name) for name in ("x86_64", "amd64", "X86-64")} == {"x86_64"}
    assert {find_arch(name) for name in ("aarch64", "arm64", "sbsa", "arm64-sbsa")} == {"aarch64"}
    assert find_arch("ppc64le") == "ppc64le"
    with pytest.raises(InvalidInput):
        find_arch("z80")


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ("580", "580"),
        ("R570", "570"),
        ("3:580.95.05-1.el9", "580.95.05"),
        ("570.86.15-0ubuntu1", "570.86.15"),
    ],
)
def test_driver_versions(text: str, driver: str) -> None:
    """Check the driver version that is read from spellings of users and packages."""
    assert driver_text(text) == driver


@pytest.mark.parametrize("text", ["", "latest", "5 80", "580.", "-1", "9" * 30])
def test_what_is_no_driver_version(text: str) -> None:
    with pytest.raises(InvalidInput):
        driver_text(text)


def test_library_versions() -> None:
    """Check the upstream version that is read from versions of packages and tags."""
    assert library_text("nccl", "2.27.3-1+cuda12.9") == "2.27.3"
    assert library_text("container_toolkit", "v1.17.8-1") == "1.17.8"
