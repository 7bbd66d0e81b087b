"""Refresh from the lab's mirror: three invented releases, and the changes proposed for review."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpuprov.catalog import load
from gpuprov.catalog.loading import read_data
from gpuprov.catalog.releases import OWN
from gpuprov.cli.catalog import command as verb
from gpuprov.errors import Exit, InvalidInput
from gpuprov.locking.resolve import Request, resolve
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.specs import PackageSpec
from maintenance.__main__ import main
from maintenance.refresh import command
from tests import ROOT

SYSTEMS = ["ubuntu24.04", "debian12"]
LIST = "usr/share/nvidia-driver-assistant/supported-gpus/supported-gpus.json"
V100 = {"devid": "0x1DB1", "name": "Tesla V100-SXM2-16GB", "features": ["kernelopen"]}
RTX_5060 = {"devid": "0x2F06", "name": "NVIDIA GeForce RTX 5060", "features": ["kernelopen"]}
L4 = {"devid": "0x27B8", "name": "NVIDIA L4", "features": ["kernelopen"]}
A6000 = {"devid": "0x2230", "name": "NVIDIA RTX A6000", "features": ["kernelopen"]}
NEW = {"devid": "0x2B8D", "name": "NVIDIA GeForce RTX 5095", "features": ["kernelopen"]}

Specs = list[PackageSpec]


def assistant(*chips: dict[str, Any]) -> PackageSpec:
    """Return NVIDIA's package with this list of GPUs."""
    listed = {LIST: json.dumps({"chips": list(chips)}).encode()}
    return PackageSpec(name="nvidia-driver-assistant", version="0.1-1", architecture="all", files=listed)


def first_day(folder: str, specs: Specs) -> Specs:
    """Return packages that the catalog knows, without CUDA 13.4.3, which it knows only from its wheel."""
    if folder in ("deb", "rpm", "doca"):
        return specs
    known = [spec for spec in specs if not spec.version.startswith("13.4.3")]
    return [*known, assistant(V100, RTX_5060, L4, A6000)]


def next_day(folder: str, specs: Specs) -> Specs:
    """Return packages with three changes: branch 625, 595.99.01 without one GPU, 580.178.04 withdrawn."""
    if folder in ("deb", "rpm", "doca"):
        return specs
    kept = [spec for spec in specs if not spec.version.startswith(("580.178.04", "13.4.3"))]
    late = [spec for spec in specs if spec.version.startswith("595.91.07")]
    invented = [
        replace(
            spec,
            name=spec.name.replace("595.91.07", "595.99.01"),
            version=spec.version.replace("91.07", "99.01"),
        )
        for spec in late
    ]
    (open_one,) = [spec for spec in late if spec.name in ("nvidia-open", "nvidia-kernel-open-dkms")][:1]
    new = [
        replace(open_one, version="625.10.01-1", relations={}),
        replace(open_one, name="cuda-compat-13-6", version="625.10.01-1", relations={}),
        replace(open_one, name="cuda-toolkit-13-6", version="13.6.0-1", relations={}),
        replace(open_one, name="libnccl2", version="2.33.1-1+cuda13.4", relations={}),
    ]
    dropped = {**A6000, "legacybranch": "595.xx"}
    return [*kept, *invented, *new, assistant(V100 | {"legacybranch": "580.xx"}, dropped, L4, NEW)]


Build = Callable[..., nvidia.Mirror]


@pytest.fixture(scope="module")
def mirrors(tmp_path_factory: pytest.TempPathFactory) -> tuple[nvidia.Mirror, nvidia.Mirror]:
    """Return two mirrors: of one day, and of the next with new releases."""
    return tuple(  # type: ignore[return-value]
        nvidia.build(tmp_path_factory.mktemp("day"), load(), SYSTEMS, change=change)
        for change in (first_day, next_day)
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Path of a writable copy of the data files."""
    return Path(shutil.copytree(OWN, tmp_path / "data"))


def refresh(mirror: nvidia.Mirror, data: Path, *arguments: str) -> Result:
    """Run `gpuprov catalog refresh` from a mirror on a folder of data; return the result."""
    said = ["--from", str(mirror.root), "--key", str(mirror.key), "--data", str(data)]
    return CliRunner().invoke(command, [*said, *arguments], standalone_mode=False)


@pytest.fixture
def second(mirrors: tuple[nvidia.Mirror, nvidia.Mirror], data: Path) -> Result:
    """Result of the second day's refresh, after the changes of the first day were written."""
    first = refresh(mirrors[0], data, "--write")
    assert first.return_value == Exit.OK, first.exception
    return refresh(mirrors[1], data)


def texts(folder: Path) -> dict[str, str]:
    """Return name → text of the JSON files in a folder."""
    return {path.name: path.read_text() for path in folder.glob("*.json")}


def test_a_world_that_is_known_proposes_nothing(
    mirrors: tuple[nvidia.Mirror, nvidia.Mirror], data: Path
) -> None:
    before = texts(data)
    said = refresh(mirrors[0], data)
    assert said.return_value == Exit.OK, said.stdout
    assert said.stdout.strip() == "0 changes, 0 that would overwrite, 0 to review by hand"
    assert "read: indexes of NVIDIA's repositories: ubuntu24.04, debian12" in said.stderr
    assert "not read: NVIDIA's repository for RHEL" in said.stderr
    assert texts(data) == before


def test_three_invented_releases_are_proposed_and_nothing_is_written(
    second: Result, data: Path, mirrors: tuple[nvidia.Mirror, nvidia.Mirror]
) -> None:
    before = texts(data)
    said = refresh(mirrors[1], data)
    assert (said.return_value, texts(data)) == (Exit.DRIFT, before)
    lines = said.stdout.splitlines()
    for expected in (
        "+ drivers.branches.625: new branch: 625.10.01 in ubuntu24.04, debian12",
        "~ drivers.branches.595.latest_known: 595.99.01 in ubuntu24.04, debian12",
        "! drivers.branches.580.latest_known: driver 580.178.04 was in ubuntu24.04 (",
        "+ cuda.releases.13.6.0: in ubuntu24.04, debian12",
        "+ nccl.releases.2.33.1: in ubuntu24.04, debian12",
        "+ devices.devices.GeForce RTX 5095: NVIDIA GeForce RTX 5095 [2B8D] is listed by 625.10.01",
        "~ gpus.gpus.RTX A6000.max_driver_branch: 625.10.01 calls RTX A6000 [2230] a legacy GPU of 595",
        "~ devices.devices.GeForce RTX 5060.doubts: GeForce RTX 5060 [2F06]: nvidia-driver-assistant of 615.",
    ):
        assert any(line.startswith(expected) for line in lines), (expected, said.stdout)
    assert "    580.178.04 → 580.159.04" in lines
    assert not any("V100" in line for line in lines)  # the catalog already has 580 as its last branch
    assert any("not written without --overwrite drivers.branches.580.latest_known" in line for line in lines)
    assert "--- a/drivers.json" in lines
    assert '+   "branch": 625, "first_release_linux": "by ' in said.stdout


def test_what_is_written_is_a_catalog_that_resolves(
    second: Result, data: Path, mirrors: tuple[nvidia.Mirror, nvidia.Mirror]
) -> None:
    said = refresh(mirrors[1], data, "--write")
    assert said.return_value == Exit.OK
    catalog = read_data(data)
    assert str(catalog.branches[580].latest_known) == "580.178.04"  # --overwrite was not given
    assert catalog.branches[625].open_modules == "only"
    assert str(catalog.branches[625].native_cuda) == "13.6"

    def rules(gpu: str, driver: str | None = None) -> set[str]:
        found = resolve(Request(gpus=(gpu,), os="ubuntu24.04", driver=driver), catalog)
        return {finding.rule for finding in (*found.violations, *found.warnings)}

    assert rules("RTX A6000", "625") >= {"gpu-driver"}
    assert "gpu-driver" not in rules("L4", "625")
    assert resolve(Request(gpus=("RTX 5095",), os="ubuntu24.04"), catalog).stack.module == "open"
    doubts = [doubt.id for doubt in catalog.doubts.values() if doubt.id.startswith(("withdrawn", "unlisted"))]
    assert doubts == ["unlisted-625.10.01"]
    assert "withdrawn-580.178.04" in rules("L4", "580.178.04")
    assert "withdrawn-580.178.04" not in rules("L4", "580.159.04")
    again = refresh(mirrors[1], data)
    assert "drivers.branches.580" not in again.stdout  # reported once: the previous reading lacks it too
    assert again.return_value == Exit.OK


def test_overwriting_takes_the_key(
    second: Result, data: Path, mirrors: tuple[nvidia.Mirror, nvidia.Mirror]
) -> None:
    with pytest.raises(
        InvalidInput, match=r"--overwrite drivers\.branches\.595\.latest_known; expected one of"
    ):
        raise (
            refresh(mirrors[1], data, "--overwrite", "drivers.branches.595.latest_known").exception
            or AssertionError
        )
    refresh(mirrors[1], data, "--write", "--overwrite", "drivers.branches.580.latest_known")
    assert str(read_data(data).branches[580].latest_known) == "580.159.04"


def test_an_index_of_another_key_is_not_read(
    mirrors: tuple[nvidia.Mirror, nvidia.Mirror], data: Path
) -> None:
    error = CliRunner().invoke(
        command,
        ["--from", str(mirrors[0].root), "--key", str(mirrors[1].key), "--data", str(data)],
        standalone_mode=False,
    )
    assert isinstance(error.exception, InvalidInput)
    assert "no source could be read" in str(error.exception)
    assert "which is not in" in error.stderr


def test_the_maintainers_command_line_maps_errors_to_exit_codes(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["refresh", "--from", str(data), "--data", str(data)]) == Exit.USAGE
    assert "scripts/catalog: no source could be read" in capsys.readouterr().err
    assert main(["refresh", "--dta", str(data)]) == Exit.USAGE
    assert main(["refresh", "--help"]) == Exit.OK


def test_a_data_file_is_written_in_its_text_format(data: Path) -> None:
    path = data / "gpus.json"
    text = path.read_text()
    path.write_text(json.dumps(json.loads(text)))
    assert main(["format", str(path)]) == Exit.OK
    assert path.read_text() == text


def test_operators_have_no_refresh_and_the_wheel_does_not_contain_it() -> None:
    assert "refresh" not in verb.commands
    assert {"update", "check", "release"} <= set(verb.commands)
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["gpuprov"]
    assert "maintenance" not in wheel["force-include"]


def test_check_tells_what_the_indexes_hold_beyond_it(mirrors: tuple[nvidia.Mirror, nvidia.Mirror]) -> None:
    def check(mirror: nvidia.Mirror) -> Result:
        said = ["check", "--from", str(mirror.root), "--key", str(mirror.key), "-o", "json"]
        return CliRunner().invoke(verb, said, standalone_mode=False)

    stale = [each["text"] for each in json.loads(check(mirrors[1]).stdout)["stale"]]
    assert check(mirrors[1]).return_value == Exit.DRIFT
    assert any(text.startswith("drivers.branches.625: new branch") for text in stale)
    assert not [each for each in json.loads(check(mirrors[0]).stdout)["stale"] if each["what"] == "index"]
