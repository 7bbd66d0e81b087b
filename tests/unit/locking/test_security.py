"""The lock and security bulletins: what is preferred, warned of, refused and ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gpuprov.catalog import load
from gpuprov.catalog.releases import OWN, contents, keep
from gpuprov.cli.catalog import command as catalog_command
from gpuprov.cli.lock import command
from gpuprov.errors import Exit, Refused
from gpuprov.locking.build import build_lock
from gpuprov.locking.resolve import Request, resolve
from gpuprov.locking.security import advices
from gpuprov.model.lock import CatalogPin, Lock, read_lock, render_lock
from tests.unit.catalog.test_bulletins import BULLETIN, site
from tests.unit.locking.fleets import Write

LATEST = {
    **BULLETIN,
    "affected": [
        {"component": "driver", "branch": 595, "fixed": "595.99.01"},
        {"component": "driver", "branch": 580, "fixed": "580.178.04"},
    ],
}
"""A bulletin about the newest driver of branch 595, whose branch 580 is fixed."""


def _stated(fleet: Path, **keys: Any) -> Path:
    """Add keys to a fleet file."""
    fleet.write_text(yaml.safe_dump({**yaml.safe_load(fleet.read_text()), **keys}))
    return fleet


def _locked(fleet: Path, previous: Lock | None = None) -> tuple[Lock, list[str]]:
    """Return a new lock for a fleet, and the lines for the user."""
    narrated: list[str] = []
    return build_lock(fleet, previous=previous, narrate=narrated.append), narrated


def _run(fleet: Path, *arguments: str) -> Result:
    """Run `gpuprov lock` for a fleet; return the result."""
    return CliRunner().invoke(command, ["--fleet", str(fleet), *arguments], standalone_mode=False)


def test_a_warning_names_cve_version_fix_and_what_to_type(one_group: Write) -> None:
    _, narrated = _locked(one_group(driver="580.95.05"))
    (line,) = [each for each in narrated if "security bulletin" in each]
    assert line.startswith(
        "train: driver 580.95.05 is affected by NVIDIA's security bulletins 5747, 5821, 5861 ("
    )
    assert "CVE-2025-33221" in line
    assert "; the nearest fixed version is 580.178.04; " in line
    assert line.endswith(
        'state stack: {driver: "580.178.04"} in groups.train, then: gpuprov lock --upgrade driver'
    )


def test_nothing_is_said_of_versions_without_bulletins(one_group: Write) -> None:
    _, narrated = _locked(one_group(driver="580", container_toolkit="1.20"))
    assert not [each for each in narrated if "bulletin" in each]


def test_a_branch_without_a_fix_leads_to_another_branch(one_group: Write) -> None:
    _, narrated = _locked(one_group(driver="570"))
    (line,) = [each for each in narrated if "security bulletin" in each]
    assert (
        "5821, 5861 name no fix for driver branch 570, and the next version with all fixes is 580.178.04"
        in line
    )
    assert 'state stack: {driver: "580.178.04"}' in line


def test_a_toolkit_leads_to_another_major_and_to_its_driver(one_group: Write) -> None:
    _, narrated = _locked(one_group(driver="570", cuda="12.8"))
    (line,) = [each for each in narrated if "CUDA 12.8" in each and "bulletin" in each]
    assert "name no fix for CUDA 12, and the next version with all fixes is 13.1.0" in line
    assert "which needs driver 580.65.06 or newer" in line


def test_policies(one_group: Write) -> None:
    """Check the narration and lock of each policy about bulletins: warn, ignore, refuse."""
    fleet = one_group(driver="580.95.05", dcgm="4.5.2")
    warned, narrated = _locked(fleet)
    assert sum("security bulletin" in each for each in narrated) == 2
    assert "security" not in yaml.safe_load(render_lock(warned))
    ignored, narrated = _locked(_stated(fleet, security="ignore"))
    assert not [each for each in narrated if "bulletin" in each]
    assert (ignored.security, ignored.groups) == ("ignore", warned.groups)
    with pytest.raises(Refused) as refused:
        build_lock(_stated(fleet, security="refuse"))
    assert "driver 580.95.05" in refused.value.seen
    assert "DCGM 4.5.2" in refused.value.seen
    assert refused.value.seen.endswith("[security]")
    assert "gpuprov lock --upgrade driver" in refused.value.do
    assert "gpuprov lock --upgrade dcgm" in refused.value.do
    one_group(driver="580", dcgm="4")
    build_lock(_stated(fleet, security="refuse"))


def test_a_fleet_without_the_key_keeps_its_bytes(one_group: Write) -> None:
    fleet = one_group(driver="580.95.05")
    first, _ = _locked(fleet)
    again, _ = _locked(_stated(fleet, security=None), previous=first)
    assert render_lock(again) == render_lock(first)
    assert _locked(_stated(fleet, security="warn"))[0].inputs != first.inputs


def test_fixed_drivers_are_preferred_and_the_reason_is_printed(one_group: Write, tmp_path: Path) -> None:
    folder = site(tmp_path / "own", LATEST)
    request = Request(gpus=("8x H200",), os="ubuntu24.04", repository="nvidia")
    assert resolve(request, load()).stack.driver == "595.91.07"
    answer = resolve(request, load([folder]))
    assert answer.stack.driver == "580.178.04"
    fleet = _stated(one_group(), catalog_dirs=[str(folder)])
    lock, narrated = _locked(fleet)
    assert lock.groups["train"].components.driver.version == "580.178.04"
    (line,) = [each for each in narrated if "9001" in each]
    assert line.startswith(
        "train: driver 580.178.04: driver 595.91.07 is affected by NVIDIA's security bulletin 9001"
    )
    assert "driver 595.91.07 is affected" in lock.groups["train"].components.driver.reason


def test_a_locked_driver_stays_until_upgrade(one_group: Write, tmp_path: Path) -> None:
    fleet = one_group()
    assert _run(fleet).return_value == Exit.OK
    path = fleet.with_name("fleet.lock.yml")
    before = read_lock(path).groups
    _stated(fleet, catalog_dirs=[str(site(tmp_path / "own", LATEST))])
    said = _run(fleet)
    assert read_lock(path).groups == before
    assert "Warning: train: driver 595.91.07 is affected by NVIDIA's security bulletin 9001" in said.stderr
    assert "gpuprov lock --upgrade driver" in said.stderr
    _run(fleet, "--upgrade", "driver")
    assert read_lock(path).groups["train"].components.driver.version == "580.178.04"


def test_a_lock_of_an_older_catalog_is_judged_by_the_newest_bulletins(one_group: Write) -> None:
    fleet = one_group(driver="580.95.05")
    first, _ = _locked(fleet)
    files = {name: content for name, content in contents(OWN).items() if name != "bulletins.json"}
    older = keep("2026.11.1", files)
    pin = CatalogPin(version=str(older.version), sha256=older.sha256)
    again, narrated = _locked(fleet, previous=first.model_copy(update={"catalog": pin}))
    assert (again.catalog, again.groups) == (pin, first.groups)
    assert sum("security bulletins 5747, 5821, 5861" in each for each in narrated) == 1


def test_refusing_without_bulletins_is_a_refusal(one_group: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuprov.catalog.catalog.Catalog.bulletins_as_of", None)
    fleet = one_group(driver="580")
    assert any("no security bulletins" in each for each in _locked(fleet)[1])
    with pytest.raises(Refused, match="no security bulletins"):
        build_lock(_stated(fleet, security="refuse"))


def test_what_a_container_toolkit_needs_is_named(lock: Lock) -> None:
    group = lock.groups["d13-a100"]
    docker = group.components.driver.model_copy(update={"version": "20.10.24"})
    changed = group.model_copy(update={"components": group.components.model_copy(update={"docker": docker})})
    (found,) = [
        each
        for each in advices("d13-a100", changed, load())
        if each.exposure.component == "container_toolkit"
    ]
    assert "the nearest fixed version is 1.19.1, which needs Docker 26.1.0 for the default CDI" in found.text
    assert found.do == ""


def test_the_catalog_check_names_groups_and_what_to_type(
    lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nothing = CliRunner().invoke(catalog_command, ["check", "--security"], standalone_mode=False)
    assert "no lock, so no versions to judge" in nothing.output
    (tmp_path / "fleet.lock.yml").write_text(render_lock(lock))
    said = CliRunner().invoke(catalog_command, ["check", "--security"], standalone_mode=False)
    assert said.return_value == Exit.DRIFT
    assert "26 security bulletins, as of 2026-09-30" in said.output
    affected = {name for name in lock.groups if f"{name}: driver " in said.stdout}
    assert affected == {
        name
        for name, group in lock.groups.items()
        if group.components.driver.version not in ("580.178.04", "595.91.07", "610.57.04")
    }
    without = CliRunner().invoke(catalog_command, ["check"], standalone_mode=False)
    assert "bulletin" not in without.output
