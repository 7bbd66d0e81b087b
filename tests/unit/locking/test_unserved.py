"""Releases that no repository of the catalog serves: `lock` refuses them and names the nearest that works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gpuprov.catalog import load
from gpuprov.catalog.identity import find_system, kin
from gpuprov.errors import Refused
from gpuprov.locking.build import build_lock
from tests.systems import SUPPORTED

CATALOG = load()
UNSERVED = sorted(CATALOG.facts["systems"]["unserved"])
GONE = {
    "ubuntu23.10": "ubuntu24.04",
    "ubuntu27.04": "ubuntu26.04",
    "debian14": "debian13",
    "debian9": "debian10",
    "rocky11": "rhel10",
    "almalinux6": "rhel7",
    "al2": "amzn2023",
    "fedora41": "fedora42",
}
"""A release of a known system, and the nearest one that the catalog has."""


def refused(folder: Path, system: str) -> str:
    """Return the message of `lock` about a fleet with that system."""
    (folder / "profiles").mkdir(exist_ok=True)
    profile = {"hardware": {"gpu": {"model": "L40S", "count": 1}}}
    (folder / "profiles/small.yml").write_text(yaml.safe_dump(profile))
    group = {"profile": "small", "hosts": "gpu01", "os": system, "stack": {"driver": "auto"}}
    (folder / "fleet.yml").write_text(yaml.safe_dump({"groups": {"train": group}}))
    with pytest.raises(Refused) as caught:
        build_lock(folder / "fleet.yml")
    return str(caught.value)


def named(message: str) -> list[str]:
    """Return the systems that a refusal names as those that would work."""
    return re.findall(r"os ([a-z]+[0-9.]+) instead of", message)


@pytest.mark.parametrize("system", GONE)
def test_a_release_is_refused_with_the_nearest_one_that_works(system: str, tmp_path: Path) -> None:
    assert find_system(CATALOG, system) is None
    assert kin(CATALOG, system)[0].id == GONE[system]
    message = refused(tmp_path, system)
    assert f"no repository of the catalog serves {system}" in message
    assert named(message)
    order = [each.id for each in kin(CATALOG, system)]
    assert named(message) == [each for each in order if each in named(message)]


@pytest.mark.parametrize("system", UNSERVED)
def test_what_the_catalog_calls_unserved_is_refused_with_systems_that_work(
    system: str, tmp_path: Path
) -> None:
    message = refused(tmp_path, f"{system}22")
    assert f"no repository of the catalog serves {system}22" in message
    assert set(named(message)) & set(SUPPORTED)


def test_a_derivative_is_replaced_by_its_origin() -> None:
    assert {each.family for each in kin(CATALOG, "linuxmint22")} == {"ubuntu"}
    assert {each.family for each in kin(CATALOG, "kali")} == {"debian"}
    assert kin(CATALOG, "alpine3.19") == []
