"""Bills of materials of a lock: valid by the schema of CycloneDX, complete, and the same at each run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from gpuprov.catalog import load
from gpuprov.cli.common.group import run
from gpuprov.errors import Exit
from gpuprov.inventory.exports.sbom import sbom
from gpuprov.model.lock import Lock, read_lock, write_lock
from tests import RECORDED_LOCK
from tests.unit.inventory.conftest import MakeLock

FLEET = """\
groups:
  train:
    profile: hgx-h200-4
    hosts: gpu[01-02]
    os: ubuntu24.04
    stack: {repository: nvidia, driver: 580.95.05, cuda: "13.0"}
  infer:
    profile: inference-l4
    hosts: {l1: 10.0.0.9}
    os: ubuntu24.04
    stack: {repository: nvidia, driver: "580"}
"""


def bill(lock: Lock, *names: str) -> dict[str, Any]:
    """Return the bill of some nodes, by default of all, after a check by the schema."""
    text = sbom(lock, names or list(lock.hosts()), load())
    errors = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert errors is None, errors
    document: dict[str, Any] = json.loads(text)
    return document


@pytest.fixture
def lock(locked: MakeLock) -> Lock:
    return locked(FLEET)


def test_the_schema_finds_what_is_wrong() -> None:
    document = bill(read_lock(RECORDED_LOCK))
    document["components"][0]["type"] = "server"
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is not None


def test_every_locked_package_is_in_it_once(lock: Lock) -> None:
    document = bill(lock)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    packages = [each for each in document["components"] if "purl" in each]
    locked = {
        (name, version)
        for group in lock.groups.values()
        for _, component in group.components.each()
        for name, version in component.closure.items()
    }
    assert {(each["name"], each["version"]) for each in packages} == locked
    assert len(packages) == len(locked)
    depends = {each["ref"]: set(each.get("dependsOn", ())) for each in document["dependencies"]}
    assert depends["fleet"] == {"group:train", "group:infer"}
    for name, group in lock.groups.items():
        names = {package for _, component in group.components.each() for package in component.closure}
        found = {each["name"] for each in packages if each["bom-ref"] in depends[f"group:{name}"]}
        assert found == names


def test_packages_have_urls_of_their_type(lock: Lock) -> None:
    urls = {each["name"]: each["purl"] for each in bill(lock)["components"] if "purl" in each}
    assert (
        urls["cuda-toolkit-13-0"]
        == "pkg:deb/ubuntu/cuda-toolkit-13-0@13.0.3-1?arch=amd64&distro=ubuntu-24.04"
    )


def test_rpm_has_its_epoch_apart(lock: Lock) -> None:
    group = lock.groups["train"]
    driver = group.components.driver.model_copy(
        update={"closure": {"nvidia-driver-cuda": "3:580.95.05-1.el9"}}
    )
    parts = group.components.model_copy(update={"driver": driver})
    changed = group.model_copy(update={"os": "rhel9", "components": parts})
    urls = {
        each["name"]: each["purl"]
        for each in bill(Lock(inputs="0", groups={"train": changed}))["components"]
        if "purl" in each
    }
    assert urls["nvidia-driver-cuda"] == (
        "pkg:rpm/redhat/nvidia-driver-cuda@580.95.05-1.el9?arch=x86_64&distro=rhel-9&epoch=3"
    )


def test_known_cves_name_the_packages_that_have_them(lock: Lock) -> None:
    found = {each["id"]: each for each in bill(lock)["vulnerabilities"]}
    assert "CVE-2025-33219" in found  # bulletin 5747: fixed in 580.126.09
    assert "CVE-2026-47549" not in found  # no row about branch 580
    refs = {each["ref"] for each in found["CVE-2025-33219"]["affects"]}
    assert all("580.95.05" in ref for ref in refs)
    assert any("nvidia-open" in ref for ref in refs)
    assert found["CVE-2025-33219"]["detail"] == "NVIDIA's security bulletin 5747"
    assert "vulnerabilities" not in bill(lock, "l1")
    assert "vulnerabilities" not in bill(lock.model_copy(update={"security": "ignore"}))


def test_a_package_with_a_version_of_its_own_has_no_cves_of_the_driver() -> None:
    document = bill(read_lock(RECORDED_LOCK))
    refs = {each["ref"] for found in document["vulnerabilities"] for each in found["affects"]}
    names = {each["name"]: each["bom-ref"] for each in document["components"]}
    assert names["libcuda1"] in refs
    assert names["nvidia-persistenced"] not in refs


def test_only_the_groups_of_the_named_nodes(lock: Lock) -> None:
    servers = {
        each["bom-ref"]: each for each in bill(lock, "gpu02")["components"] if each["type"] == "platform"
    }
    assert set(servers) == {"group:train"}
    said = {each["name"]: each["value"] for each in servers["group:train"]["properties"]}
    assert (said["gpuprov:nodes"], said["gpuprov:gpus"]) == ("gpu02", "4x H200 SXM")


def test_the_same_lock_gives_the_same_bytes(lock: Lock) -> None:
    assert sbom(lock, ["gpu01"], load()) == sbom(lock, ["gpu01"], load())
    other = json.loads(sbom(lock, ["l1"], load()))["serialNumber"]
    assert json.loads(sbom(lock, ["gpu01"], load()))["serialNumber"] != other


def test_it_is_a_format_of_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.lock.yml"
    write_lock(read_lock(RECORDED_LOCK), path)
    assert run(["inventory", "export", "sbom", "--lock", str(path)]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == bill(read_lock(path))


def test_without_the_library_it_says_what_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(["inventory", "export", "sbom", "--lock", str(RECORDED_LOCK)]) == Exit.USAGE
    assert "pip install --only-binary=:all: 'cyclonedx-python-lib" in capsys.readouterr().err
