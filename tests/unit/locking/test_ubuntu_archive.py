"""Drivers of Ubuntu's own archive, which the catalog only lists by branch: compiled, or prebuilt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuprov.errors import Refused
from gpuprov.locking.build import build_lock
from gpuprov.model.lock import Components
from gpuprov.verify.wanted import proofs
from gpuprov_lab.mirror.apt import build_suite
from gpuprov_lab.mirror.key import signing_key
from gpuprov_lab.mirror.specs import PackageSpec

DRIVER = "580.95.05"
FULL = f"{DRIVER}-0ubuntu0.24.04.2"
KERNEL = "6.8.0-71-generic"
MODULES = "linux-modules-nvidia-580-server-open"


def package(name: str, *depends: str, version: str = FULL) -> PackageSpec:
    """Return a package for the mirror, with its dependencies."""
    return PackageSpec(name, version, "amd64", relations={"Depends": ", ".join(depends)} if depends else {})


RESTRICTED = (
    package("nvidia-headless-no-dkms-580-server-open", f"libnvidia-compute-580-server (= {FULL})"),
    package("libnvidia-compute-580-server"),
    package("nvidia-utils-580-server"),
    package("nvidia-compute-utils-580-server"),
    package("nvidia-dkms-580-server-open", "dkms"),
    package("nvidia-fabricmanager-580"),
    package("nvidia-fabricmanager-580", version="580.105.08-0ubuntu0.24.04.1"),
    package(f"{MODULES}-generic", f"{MODULES}-{KERNEL}", version="6.8.0-71.71+1"),
    package(f"{MODULES}-{KERNEL}", version="6.8.0-71.71+1"),
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a signed mirror of Ubuntu's archive."""
    folder = tmp_path_factory.mktemp("ubuntu")
    empty = dict.fromkeys(("main", "universe", "multiverse"), ())
    with signing_key() as key:
        for suite in ("noble", "noble-updates", "noble-security"):
            held = RESTRICTED if suite == "noble-updates" else ()
            build_suite(folder, suite, {**empty, "restricted": held}, "amd64", key)
        (folder / "key.asc").write_bytes(key.public)
    return folder


def locked(archive: Path, folder: Path, stack: dict[str, str], gpu: str = "A100 PCIe 80GB") -> Components:
    """Lock a fleet of one group and return its components."""
    (folder / "profiles").mkdir()
    hardware = {"gpu": {"model": gpu, "count": 8}}
    (folder / "profiles/some.yml").write_text(json.dumps({"hardware": hardware}))
    group = {"profile": "some", "hosts": "gpu1", "os": "ubuntu24.04"}
    place = {"url": archive.as_uri(), "key": str(archive / "key.asc")}
    fleet = {
        "groups": {"g": {**group, "stack": {"repository": "distribution", **stack}}},
        "repositories": {"ubuntu": place},
    }
    (folder / "fleet.yml").write_text(json.dumps(fleet))
    return build_lock(folder / "fleet.yml").groups["g"].components


def test_the_lock_has_the_version_that_the_archive_has(archive: Path, tmp_path: Path) -> None:
    driver = locked(archive, tmp_path, {"driver": "580"}).driver
    assert driver.version == DRIVER
    assert (driver.module_package, driver.compiled) == ("nvidia-dkms-580-server-open", True)
    assert set(driver.packages.values()) == {FULL}


def test_the_fabric_manager_is_of_the_drivers_version_though_there_is_a_newer_one(
    archive: Path, tmp_path: Path
) -> None:
    components = locked(archive, tmp_path, {"driver": "580"}, gpu="A100 SXM4 80GB")
    assert components.fabricmanager is not None
    assert components.fabricmanager.version == components.driver.version == DRIVER


def test_a_version_that_is_stated_is_that_one_or_none(archive: Path, tmp_path: Path) -> None:
    assert locked(archive, tmp_path, {"driver": DRIVER}).driver.version == DRIVER
    (tmp_path / "other").mkdir()
    with pytest.raises(Refused, match=r"no nvidia-headless-no-dkms-580-server-open 580\.105\.08"):
        locked(archive, tmp_path / "other", {"driver": "580.105.08"})


def test_precompiled_modules_come_for_the_flavour_of_the_kernel(archive: Path, tmp_path: Path) -> None:
    driver = locked(archive, tmp_path, {"driver": "580", "module_build": "precompiled"}).driver
    assert (driver.version, driver.module_package) == (DRIVER, f"{MODULES}-generic")
    assert not driver.compiled
    assert driver.version_package == "nvidia-headless-no-dkms-580-server-open"
    assert driver.closure[f"{MODULES}-{KERNEL}"] == "6.8.0-71.71+1"
    assert not any(name.startswith("nvidia-dkms") for name in driver.closure)


def test_nobody_looks_for_dkms_where_the_module_is_precompiled(archive: Path, tmp_path: Path) -> None:
    stack = {"driver": "580", "module_build": "precompiled"}
    locked(archive, tmp_path, stack)
    checks = {each.check for each in proofs(build_lock(tmp_path / "fleet.yml").groups["g"])}
    assert "driver.dkms" not in checks
    assert "driver.four_versions" in checks
