"""Security bulletins: every known version against each of them, and misprints that are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpuprov.catalog import load, version
from gpuprov.catalog.browse import show
from gpuprov.catalog.loading import read_data
from gpuprov.catalog.records import OF_A_BRANCH
from gpuprov.catalog.releases import OWN
from gpuprov.catalog.rules.security import affected, exposure, nearest_fixed, upstream
from gpuprov.catalog.security_words import exposed_text, fix_text
from gpuprov.errors import InvalidInput

RAW = json.loads((OWN / "bulletins.json").read_text(encoding="utf-8"))["bulletins"]
ROW = {"component": "driver", "branch": 580, "fixed": "580.190.01"}
BULLETIN = {
    "id": "9001",
    "title": "Invented",
    "published": "2026-11-20",
    "score": 7.8,
    "cves": ["CVE-2026-90001"],
    "affected": [ROW],
    "source": ["own"],
}


def site(folder: Path, *bulletins: dict[str, Any]) -> Path:
    """Write a site's bulletins into a folder, and return it."""
    sources = {"own": {"title": "our own tests", "dated": "2026-11"}}
    folder.mkdir(exist_ok=True)
    (folder / "bulletins.json").write_text(json.dumps({"bulletins": list(bulletins), "sources": sources}))
    return folder


def numbers(component: str, text: str) -> list[str]:
    """Return the numbers of the bulletins that concern a version."""
    return [each.bulletin.id for each in affected(load(), component, version(text))]


@pytest.mark.parametrize("raw", RAW, ids=lambda raw: raw["id"])
def test_every_known_driver_against_each_bulletin(raw: dict[str, Any]) -> None:
    rows = {row["branch"]: row for row in raw["affected"] if row["component"] == "driver"}
    for branch in load().branches.values():
        before = branch.first_release_linux < raw["published"][: len(branch.first_release_linux)]
        for release in branch.known_versions:
            if branch.branch in rows:
                expected = release < version(rows[branch.branch]["fixed"])
            else:
                expected = bool(rows) and before
            found = [each for each in affected(load(), "driver", release) if each.bulletin.id == raw["id"]]
            assert bool(found) == expected, release
            if found and branch.branch in rows:
                row = rows[branch.branch]
                assert str(found[0].fixed) == row["fixed"]
                assert list(found[0].cves) == row.get("cves", raw["cves"])
            elif found:
                assert found[0].fixed is None


@pytest.mark.parametrize("raw", RAW, ids=lambda raw: raw["id"])
def test_every_known_library_against_each_bulletin(raw: dict[str, Any]) -> None:
    catalog = load()
    lists = {
        "cuda": [each.version for each in catalog.toolkits],
        "container_toolkit": [each.version for each in catalog.container_toolkits],
        "dcgm": [version(text) for text in ("2.4.8", "3.1.6", "3.1.7", "4.4.2", "4.5.2", "4.5.3", "4.6.0")],
    }
    for component, releases in lists.items():
        rows = [row for row in raw["affected"] if row["component"] == component]
        for release in releases:
            hit = [row for row in rows if release < version(row["fixed"])]
            found = [each for each in affected(catalog, component, release) if each.bulletin.id == raw["id"]]
            assert bool(found) == bool(hit), release
            if found:
                assert found[0].fixed == max(version(row["fixed"]) for row in hit)
                named = {cve for row in hit for cve in row.get("cves", raw["cves"])}
                assert set(found[0].cves) == named


def test_rows_of_the_shipped_bulletins_are_about_releases_that_the_catalog_knows() -> None:
    catalog = load()
    released = {each.version for each in catalog.toolkits}
    for bulletin in catalog.bulletins.values():
        for each in bulletin.affected:
            if each.component in OF_A_BRANCH:
                assert each.fixed in catalog.known_drivers
            if each.component == "cuda":
                assert each.fixed in released


def test_a_branch_without_a_row_has_no_known_fix() -> None:
    assert numbers("driver", "570.211.01") == ["5821", "5861"]
    assert nearest_fixed(load(), "driver", version("570.211.01")) is None
    found = exposure(load(), "driver", "570.195.03")
    assert found is not None
    said = "is affected by NVIDIA's security bulletins 5747, 5821, 5861 (high, 8.8: CVE-2025-33221, "
    assert exposed_text(found).startswith(f"driver 570.195.03 {said}")
    assert fix_text(found) == "5821, 5861 name no fix for driver branch 570"


def test_a_branch_that_came_after_a_bulletin_has_its_fixes() -> None:
    assert numbers("driver", "595.91.07") == []
    assert numbers("driver", "620.70.06") == []
    assert "5670" in numbers("driver", "575.64.05")
    assert "5670" not in numbers("driver", "580.65.06")


def test_the_nearest_fixed_version_is_of_the_same_line() -> None:
    for component, release, nearest in (
        ("driver", "580.95.05", "580.178.04"),
        ("driver", "615.71.08", "615.71.09"),
        ("cuda", "12.4.1", None),
        ("cuda", "13.0.2", "13.1.0"),
        ("container_toolkit", "1.14.0", "1.19.1"),
        ("dcgm", "4.5.2", "4.5.3"),
    ):
        found = nearest_fixed(load(), component, version(release))
        assert (str(found) if found else None) == nearest, (component, release)
    found = exposure(load(), "cuda", "12.8.1")
    assert found is not None
    assert fix_text(found) == "5661, 5755 name no fix for CUDA 12"


def test_a_locked_version_is_read_without_its_build() -> None:
    assert str(upstream("2.29.7+cuda13.2")) == "2.29.7"
    assert str(upstream("4.5.2-1")) == "4.5.2"
    assert upstream("none") is None
    assert exposure(load(), "docker", "20.10.24") is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"affected": [{**ROW, "fixed": "580.190.x"}]}, r"fixed: '580.190.x'; expected a version"),
        ({"affected": [{**ROW, "fixed": "535.190.01"}]}, r"branch 580: fixed 535.190.01; expected"),
        ({"affected": [{**ROW, "branch": 777}]}, r"driver of branch 777; expected one of 340"),
        ({"affected": [{"component": "driver", "fixed": "580.190.01"}]}, r"branch None; expected one of"),
        ({"affected": [{**ROW, "component": "cuda"}]}, r"cuda of branch 580; expected no branch"),
        ({"affected": [{**ROW, "component": "firmware"}]}, r"component: 'firmware'; expected one"),
        ({"affected": [{**ROW, "last": "580.190.01"}]}, r"last affected is 580.190.01"),
        ({"affected": [{**ROW, "first": "580.195.01"}]}, r"first affected is 580.195.01"),
        ({"affected": [{"component": "dcgm", "last": "4.6.0", "fixed": "4.5.9"}]}, r"newer than 4.6.0"),
        ({"affected": [{"component": "dcgm"}]}, r"dcgm without a fixed version"),
        ({"affected": [{**ROW, "fixed": None, "first": "580.9.1", "last": "580.8.1"}]}, r"older version"),
        ({"affected": [{**ROW, "cves": ["CVE-2026-90002"]}]}, r"cves: CVE-2026-90002; expected a CVE"),
        ({"cves": ["CVE-26-1"]}, r"cves: 'CVE-26-1'; expected CVE-YEAR-NUMBER"),
        ({"cves": [], "affected": []}, r"cves: none"),
        ({"score": 78}, r"score: 78; expected a CVSS base score"),
        ({"published": "2026-11"}, r"published: '2026-11'; expected a day"),
        ({"updated": "2026-10-20"}, r"updated: 2026-10-20; expected 2026-11-20"),
        ({"source": ["nowhere"]}, r"source: 'nowhere' is in no sources"),
    ],
)  # fmt: skip
def test_a_misprint_is_named(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=rf"bulletins\.json: bulletins\[9001\].*{said}"):
        load([site(tmp_path, {**BULLETIN, **changed})])


def test_a_site_adds_a_bulletin(tmp_path: Path) -> None:
    catalog = load([site(tmp_path, BULLETIN)])
    (found,) = affected(catalog, "driver", version("580.178.04"))
    assert (found.bulletin.id, str(found.fixed), found.bulletin.severity) == ("9001", "580.190.01", "high")
    assert not affected(catalog, "driver", version("580.190.01"))
    assert [each.bulletin.id for each in affected(catalog, "driver", version("595.91.07"))] == ["9001"]


def test_a_row_without_a_fix_ends_with_the_last_version_that_is_named(tmp_path: Path) -> None:
    row = {"component": "driver", "branch": 580, "first": "580.142", "last": "580.159.04"}
    catalog = load([site(tmp_path, {**BULLETIN, "affected": [row]})])
    for release, hit in (
        ("580.126.20", False),
        ("580.142", True),
        ("580.159.04", True),
        ("580.173.02", False),
    ):
        found = [each.bulletin.id for each in affected(catalog, "driver", version(release))]
        assert ("9001" in found) == hit, release


@pytest.mark.parametrize(
    ("score", "severity"), [(3.9, "low"), (4.0, "medium"), (7.0, "high"), (9.0, "critical")]
)
def test_severities_are_those_of_cvss(tmp_path: Path, score: float, severity: str) -> None:
    catalog = load([site(tmp_path, {**BULLETIN, "score": score})])
    assert catalog.bulletins["9001"].severity == severity


def test_an_older_release_without_bulletins_is_read(tmp_path: Path) -> None:
    shutil.copytree(OWN, tmp_path / "old")
    (tmp_path / "old/bulletins.json").unlink()
    catalog = read_data(tmp_path / "old")
    assert (dict(catalog.bulletins), catalog.bulletins_as_of, catalog.as_of) == ({}, None, load().as_of)
    assert load().bulletins_as_of == "2026-09-30"


def test_a_bulletin_is_found_by_its_number_and_by_a_cve() -> None:
    for name in ("5582", "cve-2024-0132"):
        where, record = show(load(), name)
        assert (where, record["id"], record["score"]) == ("bulletins", "5582", 9.0)
