"""Security advisories in CSAF 2.0: what is read, proposed and refused; misprints are remarks."""

from __future__ import annotations

import copy
import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprov.catalog import load, version
from gpuprov.catalog.loading import read_data
from gpuprov.catalog.releases import OWN
from gpuprov.catalog.rules.security import affected
from gpuprov.errors import Exit, GpuprovError, InvalidInput
from gpuprov.locking.catalogs.refresh import bulletins
from gpuprov.locking.catalogs.refresh.bulletins import read_advisories
from gpuprov.locking.catalogs.refresh.csaf import read_advisory
from gpuprov.locking.catalogs.refresh.proposal import Proposal, read_documents
from gpuprov.locking.catalogs.refresh.propose import propose
from gpuprov.locking.catalogs.refresh.seen import NotRead, Reading
from maintenance import changes
from maintenance.refresh import command
from tests.unit.locking.catalogs.advisories import advisory, row, tesla, write

DAY = "2026-11-25"
ONE, TWO = "CVE-2026-90001", "CVE-2026-90002"


def proposed(folder: Path, *documents: dict[str, Any]) -> Proposal:
    """Return what follows from advisories in a folder for the shipped catalog."""
    read = read_advisories([str(write(folder, *documents))], DAY)
    return propose(load(), read_documents(OWN), [each for each in read if isinstance(each, Reading)], DAY)[0]


def test_a_new_advisory_becomes_a_record(tmp_path: Path) -> None:
    document = advisory(
        "5990", {ONE: [tesla(580, "580.190.01"), tesla(595, "595.99.01")], TWO: [tesla(580, "580.190.01")]}
    )
    (change,) = proposed(tmp_path, document).changes
    assert (change.key, change.source) == ("bulletins.bulletins.5990", f"csaf-nvidia-{DAY}")
    assert change.value == {
        "id": "5990",
        "title": "Invented 5990",
        "published": "2026-10-20",
        "revision": "1.0.0",
        "score": 7.8,
        "cves": [ONE, TWO],
        "affected": [
            {"component": "driver", "branch": 580, "fixed": "580.190.01"},
            {"component": "driver", "branch": 595, "fixed": "595.99.01", "cves": [ONE]},
        ],
        "source": [f"csaf-nvidia-{DAY}"],
    }


@pytest.mark.parametrize(
    ("platform", "name", "affected", "fixed", "wanted"),
    [
        ("Linux", "NVIDIA Container Toolkit", "All versions up to and including 1.20.0", "1.20.1",
         {"component": "container_toolkit", "last": "1.20.0", "fixed": "1.20.1"}),
        ("Windows, Linux", "NVIDIA CUDA Toolkit", "All versions prior to CUDA Toolkit 13.4 Update 1",
         "CUDA Toolkit 13.4 Update 1", {"component": "cuda", "fixed": "13.4.1"}),
        ("Windows, Linux", "CUDA Toolkit", "All versions up to and including 13.4U1", "CUDA Toolkit 13.5",
         {"component": "cuda", "last": "13.4.1", "fixed": "13.5.0"}),
        ("All(4.6)", "DCGM", "0.0  to 4.6.0", "v4.6.1",
         {"component": "dcgm", "last": "4.6.0", "fixed": "4.6.1"}),
        ("Linux(R580 vGPU 19)", "Guest driver", "580.1.1(All)", "580.2.2(vGPU 19.1)", None),
        ("Windows", "NVIDIA CUDA Toolkit", "All versions prior to 13.5", "13.5", None),
        ("Linux", "NVIDIA GPU Operator", "All versions prior to 26.1", "26.1", None),
    ],
)  # fmt: skip
def test_products_and_versions_as_the_vendor_writes_them(
    tmp_path: Path, platform: str, name: str, affected: str, fixed: str, wanted: dict[str, str] | None
) -> None:
    found = proposed(tmp_path, advisory("5990", {ONE: [row(platform, name, affected, fixed)]}))
    assert not found.remarks
    assert [change.value["affected"] for change in found.changes] == ([[wanted]] if wanted else [])


def test_another_board_has_another_fixed_version(tmp_path: Path) -> None:
    other = row("Linux(R580)", "GeForce", "All driver versions prior to 580.190.02", "580.190.02")
    for rows in ([tesla(580, "580.190.01"), other], [other, tesla(580, "580.190.01")]):
        (change,) = proposed(tmp_path, advisory("5990", {ONE: rows})).changes
        assert change.value["affected"] == [{"component": "driver", "branch": 580, "fixed": "580.190.01"}]


def test_fixes_of_one_product_that_differ_are_rows_of_their_own(tmp_path: Path) -> None:
    def cuda(fixed: str) -> tuple[str, str, str, str]:
        """Return the row of a CUDA release with a fix."""
        return row(
            "Windows, Linux", "NVIDIA CUDA Toolkit", f"All versions prior to CUDA Toolkit {fixed}", fixed
        )

    (change,) = proposed(
        tmp_path, advisory("5990", {ONE: [cuda("12.9 Update 2")], TWO: [cuda("13.5")]})
    ).changes
    assert change.value["affected"] == [
        {"component": "cuda", "fixed": "12.9.2", "cves": [ONE]},
        {"component": "cuda", "fixed": "13.5.0", "cves": [TWO]},
    ]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (tesla(535, "575.274.02"), "driver of branch 535: fixed 575.274.02"),
        (tesla(777, "777.10.01"), "driver of branch 777, expected one of 340"),
        (tesla(580, "the next one"), "'the next one' as the fixed version of driver"),
        (tesla(580, "580.190.01", "0.0 to 580.191.01"), "last affected is 580.191.01"),
        (row("Linux", "NVIDIA Container Toolkit", "0.0 to 1.20.1", "1.20.0"), "last affected is 1.20.1"),
    ],
)  # fmt: skip
def test_a_misprint_is_a_remark_and_the_other_rows_stay(
    tmp_path: Path, wrong: tuple[str, str, str, str], said: str
) -> None:
    found = proposed(tmp_path, advisory("5990", {ONE: [wrong, tesla(595, "595.99.01")]}))
    (remark,) = found.remarks
    assert remark.startswith("bulletin 5990: ")
    assert said in remark
    assert [change.value["affected"] for change in found.changes] == [
        [{"component": "driver", "branch": 595, "fixed": "595.99.01"}]
    ]


@pytest.mark.parametrize("score", [None, "x", "nan", "9.8", -5, 0, True, 1e300, {}], ids=repr)
def test_a_record_that_the_catalog_would_refuse_is_a_remark(tmp_path: Path, score: object) -> None:
    document = advisory("5990", {ONE: [tesla(580, "580.190.01")]})
    document["vulnerabilities"][0]["scores"] = [{"cvss_v3": {"baseScore": score}}]
    found = proposed(tmp_path, document)
    assert not found.changes
    assert found.remarks == [
        "bulletin 5990: score: 0, expected a CVSS base score, above 0 and at most 10: to be looked at by hand"
    ]


def test_a_bulletin_is_not_updated_before_it_is_published(tmp_path: Path) -> None:
    document = advisory(
        "5990", {ONE: [tesla(580, "580.190.01")]}, current_release_date="2020-01-01T00:00:00Z"
    )
    found = proposed(tmp_path, document)
    assert not found.changes
    assert "updated: 2020-01-01, expected 2026-10-20" in found.remarks[0]


def test_remarks_about_one_advisory_are_limited(tmp_path: Path) -> None:
    rows = [tesla(branch, f"none of {branch}") for branch in range(500, 600)]
    found = proposed(tmp_path, advisory("5990", {ONE: rows}))
    assert len(found.remarks) == 21
    assert "80 more like these" in found.remarks[-1]


LONG = "A" * (1 << 20)


def _large(what: str) -> dict[str, Any]:
    """Return an advisory that names one thing many times."""
    if what == "a name":
        document = advisory("5990", {ONE: [row("Linux", "any", "1.0", "1.1")]})
        for leaf in document["product_tree"]["branches"][0]["branches"][0]["branches"]:
            leaf["name"] = LONG
        status = document["vulnerabilities"][0]["product_status"]
        document["vulnerabilities"][0]["product_status"] = {key: each * 6000 for key, each in status.items()}
        return document
    if what == "CVEs":
        one = [row("Linux", "DCGM", "0.0 to 4.6.0", "4.6.1")]
        return advisory("5990", {f"CVE-2026-{number:06}": one for number in range(24_000)})
    affected = [tesla(580, "580.190.01", f"0.0 to 580.100.{number}") for number in range(1500)]
    fixed = [tesla(branch, f"{branch}.190.01") for branch in range(1000, 2500)]
    return advisory("5990", {ONE: [*affected, *fixed]})


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["a name", "CVEs", "branches"])
def test_the_time_of_a_document_is_in_proportion_to_its_size(tmp_path: Path, what: str) -> None:
    folder = write(tmp_path, _large(what))
    begun = time.process_time()
    proposed(folder)
    assert time.process_time() - begun < 3


def test_a_list_that_contains_the_old_one_is_found_in_time_of_their_length() -> None:
    cves = [f"CVE-2026-{number}" for number in range(50_000)]
    row = {"id": "5990", "cves": cves, "source": ["hand"]}
    proposal = Proposal({"bulletins": {"bulletins": [row]}})
    begun = time.process_time()
    proposal.set(("bulletins", "bulletins", "5990"), ("cves", cves[::-1]), "", "read")
    assert time.process_time() - begun < 1
    assert proposal.changes[0].by_hand == ()


def test_changes_are_not_read_again_for_each_record() -> None:
    proposal = Proposal({"bulletins": {"bulletins": []}})
    begun = time.process_time()
    for number in range(10_000):
        proposal.add("bulletins", "bulletins", {"id": str(number)}, "", "read")
        proposal.set(("bulletins", "bulletins", str(number)), ("score", 5.0), "", "read")
    assert time.process_time() - begun < 1
    assert proposal.record("bulletins", "bulletins", "9999") == {"id": "9999", "score": 5.0}


def test_a_second_document_of_an_id_is_left_out(tmp_path: Path) -> None:
    folder = write(tmp_path, advisory("5990", {ONE: [tesla(580, "580.190.01")]}))
    shutil.copytree(folder / "2026", folder / "2027")
    reading, failed = read_advisories([str(folder)], DAY)
    assert isinstance(reading, Reading)
    assert len(reading.advisories) == 1
    assert isinstance(failed, NotRead)
    assert "2027/5990/5990.json: a second document of 5990" in failed.why


def test_all_documents_of_a_run_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, *(advisory(f"599{n}", {ONE: [tesla(580, "580.190.01")]}) for n in range(3)))
    monkeypatch.setattr(bulletins, "BYTES", 2 * (folder / "2026/5990/5990.json").stat().st_size)
    reading, failed = read_advisories([str(folder)], DAY)
    assert isinstance(reading, Reading)
    assert len(reading.advisories) == 2
    assert isinstance(failed, NotRead)
    assert "and later ones" in failed.what


def test_a_known_revision_is_no_news_and_a_newer_one_overwrites_nothing_by_itself(tmp_path: Path) -> None:
    known = load().bulletins["5747"]
    rows = [tesla(each.branch or 0, str(each.fixed)) for each in known.affected]
    same = advisory("5747", dict.fromkeys(known.cves, rows), version=known.revision or "")
    assert not proposed(tmp_path / "same", same).changes
    newer = advisory("5747", {**dict.fromkeys(known.cves, rows), ONE: rows}, version="2.0.0")
    changes = proposed(tmp_path / "newer", newer).changes
    assert {change.key for change in changes} >= {
        "bulletins.bulletins.5747.cves",
        "bulletins.bulletins.5747.revision",
    }
    assert all(change.by_hand for change in changes if change.field != "cves")


def test_the_form_of_the_standard_is_read_as_well(tmp_path: Path) -> None:
    document = advisory("5990", {ONE: [tesla(580, "580.190.01")]})
    leaves = [
        {
            "category": kind,
            "name": text,
            "product": {"name": "any", "product_id": f"Linux(R580) Tesla {text}"},
        }
        for kind, text in (
            ("product_version_range", "All driver versions prior to 580.190.01"),
            ("product_version", "580.190.01"),
        )
    ]
    product = {"category": "product_name", "name": "Tesla", "branches": leaves}
    document["product_tree"]["branches"] = [
        {"category": "architecture", "name": "Linux(R580)", "branches": [product]}
    ]
    (change,) = proposed(tmp_path, document).changes
    assert change.value["affected"] == [{"component": "driver", "branch": 580, "fixed": "580.190.01"}]


def _changed(**changed: Any) -> bytes:
    """Return an advisory as JSON, with other keys of `document`, its `tracking`, or at the top."""
    document = advisory("5990", {ONE: [tesla(580, "580.190.01")]})
    document["document"] |= changed.pop("document", {})
    document["document"]["tracking"] |= changed.pop("tracking", {})
    return json.dumps({**document, **changed}).encode()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "Expecting"),
        (b"[]", "list indices"),
        (_changed(document={"csaf_version": "2.1"}), "csaf_version '2.1', not 2.0"),
        (_changed(tracking={"id": "../../etc"}), "tracking.id is '../../etc'"),
        (_changed(tracking={"current_release_date": "2026-13-01"}), "month must be"),
        (_changed(tracking={"version": {}}), "tracking.version is {}"),
        (_changed(vulnerabilities=[{"cve": "CVE-1"}]), "vulnerabilities.cve is 'CVE-1'"),
        (_changed(product_tree={"branches": [7]}), "not subscriptable"),
        (_changed(product_tree={"branches": "ab"}), "branches is not a list"),
        (_changed(vulnerabilities="ab"), "vulnerabilities is not a list"),
        (_changed(vulnerabilities=[{"cve": ONE, "product_status": {"fixed": "ab"}}]), "fixed is not a list"),
        (_changed(vulnerabilities=[{"cve": ONE, "scores": "ab"}]), "scores is not a list"),
        (b" " * 16_000_001, "more than 16000000"),
        (b"[" + b"[]," * (1 << 19) + b"[]]", "values"),
    ],
)  # fmt: skip
def test_what_is_no_advisory_is_refused(content: bytes, said: str) -> None:
    """Check that a document that is not a security advisory in CSAF 2.0 is refused."""
    with pytest.raises(InvalidInput, match=r"a security advisory in CSAF 2\.0") as refused:
        read_advisory(content, "x.json")
    assert said in str(refused.value)


def test_a_product_counts_once_for_a_vulnerability() -> None:
    """Keep a product once: a list of 500,000 references takes 4 MB, for each of 500 documents."""
    document = advisory("5990", {ONE: [tesla(580, "580.190.01")]})
    [vulnerability] = document["vulnerabilities"]
    status = vulnerability["product_status"]
    vulnerability["product_status"] = {key: ids * 1000 for key, ids in status.items()}
    [read] = read_advisory(json.dumps(document).encode(), "x.json").vulnerabilities
    assert len(read.fixed) == len(status["fixed"])


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda each: st.lists(each) | st.dictionaries(st.text(), each)
    )
)
def test_any_other_document_is_refused_or_read(part: Any) -> None:
    document = advisory("5990", {ONE: [tesla(580, "580.190.01")]})
    for key in ("document", "product_tree", "vulnerabilities"):
        with suppress(InvalidInput):
            assert read_advisory(json.dumps({**document, key: part}).encode(), "x.json").id == "5990"


def test_files_that_cannot_be_read_are_listed(tmp_path: Path) -> None:
    good = write(tmp_path, advisory("5990", {ONE: [tesla(580, "580.190.01")]}))
    (tmp_path / "2026/5991").mkdir()
    (tmp_path / "2026/5991/5991.json").write_text("{}")
    read = read_advisories([str(good), str(tmp_path / "none.json")], DAY)
    assert [len(each.advisories) for each in read if isinstance(each, Reading)] == [1]
    failed = [each for each in read if isinstance(each, NotRead)]
    assert ["5991.json" in failed[0].what, "No such file" in failed[1].why] == [True, True]
    url = (tmp_path / "2026/5990/5990.json").as_uri()
    assert [len(each.advisories) for each in read_advisories([url], DAY) if isinstance(each, Reading)] == [1]


def test_links_in_a_folder_of_advisories_are_left_out(tmp_path: Path) -> None:
    """Check a link to a pipe, which would be waited for, and one to an advisory elsewhere."""
    good = write(tmp_path / "kept", advisory("5990", {ONE: [tesla(580, "580.190.01")]}))
    clone = tmp_path / "clone"
    for name, target in (("5990", good / "2026/5990/5990.json"), ("5991", tmp_path / "pipe")):
        (clone / name).mkdir(parents=True)
        (clone / f"{name}/{name}.json").symlink_to(target)
    os.mkfifo(tmp_path / "pipe")
    (clone / "5992").mkdir()
    os.mkfifo(clone / "5992/5992.json")
    [read] = read_advisories([str(clone)], DAY)
    assert isinstance(read, NotRead)
    assert "no file ID/ID.json" in read.why


def test_the_maintainers_command_writes_a_catalog_that_judges_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maintenance.refresh.read_all", lambda *_: [])
    data = tmp_path / "data"
    shutil.copytree(OWN, data)
    feed = write(tmp_path / "feed", advisory("5990", {ONE: [tesla(580, "580.190.01")]}))
    arguments = ["--csaf", str(feed), "--data", str(data)]
    shown = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert shown.return_value == Exit.DRIFT
    assert "+ bulletins.bulletins.5990: revision 1.0.0 of 2026-10-20" in shown.output
    written = CliRunner().invoke(command, [*arguments, "--write"], standalone_mode=False)
    assert written.return_value == Exit.OK
    found = affected(read_data(data), "driver", version("580.178.04"))
    assert [(each.bulletin.id, str(each.fixed)) for each in found] == [("5990", "580.190.01")]
    again = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert "0 changes" in again.output


def test_a_catalog_that_would_not_load_is_not_written(tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(OWN, data)
    old = read_documents(data)
    new = copy.deepcopy(old)
    new["bulletins"]["bulletins"][0]["score"] = 0
    with pytest.raises(
        GpuprovError, match=r"nothing was written, because the catalog would not load: .*score: 0"
    ):
        changes.write(data, old, new)
    assert read_documents(data) == old
