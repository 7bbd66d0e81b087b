"""Loading of the catalog; errors in the data are reported with file, record and field."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpuprov.catalog import load
from gpuprov.catalog.gpu_names import find_gpu
from gpuprov.catalog.loading import OF_ARCHITECTURE, OF_SEGMENT, read_data
from gpuprov.catalog.releases import OWN as DATA
from gpuprov.errors import InvalidInput
from gpuprov.locking.resolve import Request, resolve
from gpuprov.model.profile import load_profile
from maintenance.data_files import render

OWN = {"own": {"title": "our own tests", "dated": "2026-11"}}


def _site(folder: Path, name: str, **sections: Any) -> Path:
    """Write a site's file with sections of the catalog; return its folder."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({"as_of": "2026-11-21", "sources": OWN, **sections}))
    return folder


def test_every_record_cites_sources_that_exist() -> None:
    catalog = load()
    cited = 0
    for records in (*catalog.tables.values(), catalog.gpus):
        for record in records:
            for key in getattr(record, "source", ()):
                assert str(catalog.sources[key])
                cited += 1
    assert cited > 800


def test_gpus_agree_with_the_table_of_architectures() -> None:
    architectures = {row.compute_capability: row for row in load().tables["cuda.architectures"]}
    for gpu in load().gpus:
        row = architectures[gpu.compute_capability]
        assert (gpu.first_cuda, gpu.last_cuda) == (row.first_cuda, row.last_cuda)
        ends_before = gpu.id in ("GRID K1", "GRID K2", "GRID K340")
        assert gpu.max_driver_branch == (367 if ends_before else row.last_driver_branch)


def test_libraries_agree_between_their_own_tables_and_the_driver_floors() -> None:
    catalog = load()
    for row in catalog.tables["cudnn.builds"]:
        assert row.min_driver in (None, catalog.minor_compat[row.cuda_major].min_driver_linux)


def test_records_are_read_when_a_verb_needs_them(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DATA, tmp_path / "release"))
    document = json.loads((folder / "nccl.json").read_text())
    document["releases"][0]["version"] = 2
    (folder / "nccl.json").write_text(json.dumps(document))
    catalog = load(release=folder)
    assert catalog.bulletins
    with pytest.raises(InvalidInput, match=r"nccl.json: releases\[.*version: 2"):
        catalog.tables["nccl.releases"]
    with pytest.raises(InvalidInput, match=r"nccl.json: releases"):
        read_data(folder)


def test_a_site_adds_records(tmp_path: Path) -> None:
    issue = {
        "id": "our-kernel",
        "kind": "build",
        "branches": [595],
        "os": ["ubuntu24.04"],
        "kernels": [{"series": "6.8", "fails_from": "6.8.0"}],
        "condition": "our kernel",
        "effect": "DKMS fails",
        "remedy": "boot another",
        "source": ["own"],
    }
    catalog = load([_site(tmp_path, "drivers", known_issues=[issue])])
    request = Request(gpus=("L4",), os="ubuntu24.04", driver="595", kernel="6.8.0-55-generic")
    (violation,) = resolve(request, catalog).violations
    assert violation.rule == "our-kernel"
    assert "our own tests" in violation.source
    assert resolve(request, load()).verdict == "ok"


def test_a_site_overrides_fields_of_a_record(tmp_path: Path) -> None:
    catalog = load(
        [_site(tmp_path, "gpus", gpus=[{"id": "L4", "min_driver": "595.91.07", "source": ["own"]}])]
    )
    assert resolve(Request(gpus=("L4",), os="rhel9", driver="595.58.03"), catalog).verdict == "refused"
    assert resolve(Request(gpus=("L4",), os="rhel9", driver="595.58.03"), load()).verdict == "ok"
    assert len(catalog.gpus) == len(load().gpus)


def test_a_site_names_packages_before_the_catalog_does(tmp_path: Path) -> None:
    rule = {"component": "driver", "repository": ["nvidia"], "names": ["our-driver"], "source": ["own"]}
    catalog = load([_site(tmp_path, "packages", packages=[rule])])
    assert resolve(Request(gpus=("L4",), os="rhel9"), catalog).packages["driver"].names == ("our-driver",)


@pytest.mark.parametrize(
    ("name", "sections", "said"),
    [
        (
            "gpus",
            {"gpus": [{"id": "L4", "memory_gb": "24"}]},
            r"gpus\.json: gpus\[L4\]\.memory_gb: '24'; expected a whole",
        ),
        (
            "gpus",
            {"gpus": [{"id": "L4", "memory_gb": True}]},
            r"gpus\[L4\]\.memory_gb: True; expected a whole",
        ),
        ("gpus", {"gpus": [{"id": "L4", "min_drvier": 1}]}, r"gpus\[L4\]\.min_drvier: unknown field"),
        ("gpus", {"gpus": [{"id": "X1"}]}, r"gpus\[X1\]\.nvidia_smi_name: missing"),
        (
            "gpus",
            {"gpus": [{"id": "L4", "min_driver": 595.5}]},
            r"gpus\[L4\]\.min_driver: 595.5; expected a version in q",
        ),
        (
            "gpus",
            {"gpus": [{"id": "L4", "segment": "toy"}]},
            r"gpus\[L4\]\.segment: 'toy'; expected one of data-center",
        ),
        (
            "gpus",
            {"gpus": [{"id": "L4", "pci_device_ids": [27]}]},
            r"gpus\[L4\]\.pci_device_ids\[0\]: 27; expected a str",
        ),
        (
            "gpus",
            {"gpus": [{"id": "L4", "source": ["nowhere"]}]},
            r"gpus\[L4\]\.source: 'nowhere' is in no sources",
        ),
        ("gpus", {"gpus": ["L4"]}, r"gpus\[0\]: 'L4'; expected an object"),
        ("gpus", {"gpus": {}}, r"gpus\.json: gpus is not a list"),
        (
            "drivers",
            {"branches": [{"branch": 595, "eol": 2027}]},
            r"branches\[595\]\.eol: 2027; expected a string",
        ),
        ("policies", {"sources": {"own": {"title": 1}}}, r"sources\.own"),
    ],
)
def test_bad_data_is_named(tmp_path: Path, name: str, sections: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        load([_site(tmp_path, name, **sections)])


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such folder"):
        load([tmp_path / "missing"])
    (tmp_path / "gpus.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"gpus\.json: .*line 1"):
        load([tmp_path])
    (tmp_path / "gpus.json").write_text("[]")
    with pytest.raises(InvalidInput, match=r"gpus\.json: not an object"):
        load([tmp_path])


def test_every_doubt_is_known_and_about_something() -> None:
    catalog = load()
    records = [record for table in catalog.tables.values() for record in table]
    named = {key for record in [*records, *catalog.gpus] for key in getattr(record, "doubts", ())}
    assert named == set(catalog.doubts)


def test_what_holds_for_an_architecture_is_stated_once() -> None:
    """Boards do not repeat values of their architecture or segment."""
    raw = json.loads((DATA / "gpus.json").read_text())
    cuda = json.loads((DATA / "cuda.json").read_text())
    architectures = {row["compute_capability"]: row for row in cuda["architectures"]}
    segments = {row["segment"]: row for row in raw["segments"]}
    for gpu in raw["gpus"]:
        row, segment = architectures[gpu["compute_capability"]], segments[gpu["segment"]]
        said = {name: row.get(of) for of, name in OF_ARCHITECTURE.items() if of != "first_driver_branch"}
        said |= {name: segment.get(name) for name in OF_SEGMENT}
        assert not [name for name, value in said.items() if name in gpu and gpu[name] == value]


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json")), ids=lambda path: path.stem)
def test_every_data_file_is_written_in_the_one_form(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert render(json.loads(text)) == text


def test_machine_types_have_the_gpu_of_their_profile() -> None:
    catalog = load()
    for instance in catalog.instances.values():
        stated = load_profile(instance.profile, []).profile.hardware.gpu.model
        assert stated is not None
        assert find_gpu(catalog, stated).id == instance.gpu


def test_a_site_adds_a_device_and_changes_one(tmp_path: Path) -> None:
    row = {
        "id": "Own 1",
        "name": "Own 1",
        "segment": "geforce",
        "compute_capability": "8.9",
        "source": ["own"],
    }
    rows = [{**row, "devices": {"2FFF": "600.1"}}, {"id": "GB10", "memory_gb": 128}]
    catalog = load([_site(tmp_path, "devices", devices=rows)])
    assert catalog.gpu("own 1").max_driver_branch is None  # type: ignore[union-attr]
    assert catalog.gpu("GB10").memory_gb == 128  # type: ignore[union-attr]
    with pytest.raises(InvalidInput, match=r"devices\[Own 1\]\.segment: 'toy'"):
        load([_site(tmp_path / "bad", "devices", devices=[{**rows[0], "segment": "toy"}])])
