"""Test cases from bundles: what a bundle contains, and nothing else, judged as the machine was."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gpuprov.doctor.bundle.bundle import SCHEMA, compose, pack
from gpuprov.doctor.judge import diagnose
from gpuprov.errors import Exit, InvalidInput
from maintenance.__main__ import main
from maintenance.case import UNPACKED, chosen, read_bundle
from maintenance.restoring import restored
from tests import ROOT
from tests.unit.doctor.faults import FAULTS
from tests.unit.doctor.machines import Change, Collectors, as_examined, bare_metal
from tests.unit.doctor.reports import ALARMS

KEPT = (
    "bus.lost",
    "bus.bar",
    "bus.nouveau",
    "bus.count",
    "driver.mismatch",
    "driver.build_failed",
    "driver.vermagic",
    "driver.flavour",
    "driver.gsp",
    "driver.symbols",
    "driver.not_loaded",
    "errors.xid",
    "errors.sxid",
    "errors.ecc_now",
    "errors.repair_pending",
    "fabric.manager",
    "fabric.version",
    "fabric.links_down",
    "speed.power_limit",
    "speed.pcie_width",
    "network.port_down",
    "host.cpus",
)
"""Rules whose first fault in `FAULTS` comes first in a case, too."""
PRIVATE = "corp-gpu-17.example"


def bundled(path: Path, collectors: Collectors) -> Path:
    """Write the bundle of a machine to a path, and return it."""
    pack(path, compose(as_examined(collectors, PRIVATE)))
    return path


def faulty(change: Change) -> Collectors:
    """Return a healthy machine's facts with a change."""
    result = bare_metal()
    change(result)
    return result


def rewritten(path: Path, **files: str) -> Path:
    """Write a bundle with these files."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"gpuprov-bundle/{name.replace('__', '.').replace('_', '-')}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path


@pytest.mark.parametrize("name", KEPT)
def test_a_case_has_the_fault_of_the_machine(name: str, tmp_path: Path) -> None:
    number = -1 if name == "driver.vermagic" else 0  # by the file of the module, not by the log
    case = chosen(restored(read_bundle(bundled(tmp_path / "b.tar.gz", faulty(FAULTS[name][number])))))
    found = diagnose(as_examined(case))
    assert found.faults, found.unknown
    assert found.faults[0].rule == name, [fault.rule for fault in found.faults]
    assert not [each for each in found.unknown if "could not be read (" in each[1]], found.unknown


def test_the_case_of_a_healthy_machine_is_silent(tmp_path: Path) -> None:
    case = chosen(restored(read_bundle(bundled(tmp_path / "b.tar.gz", bare_metal()))))
    assert [fault.text for fault in diagnose(as_examined(case)).faults if fault.severity in ALARMS] == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests/recorded/doctor").glob("h*.json")), ids=lambda path: path.stem
)
def test_the_case_of_a_recorded_machine_has_no_fault_that_the_machine_has_not(
    path: Path, tmp_path: Path
) -> None:
    collectors = json.loads(path.read_text())["collectors"]
    case = chosen(restored(read_bundle(bundled(tmp_path / "b.tar.gz", collectors))))
    before, after = (
        {fault.rule for fault in diagnose(as_examined(each)).faults if fault.severity in ALARMS}
        for each in (collectors, case)
    )
    assert after <= before
    machine, restored_one = as_examined(collectors), as_examined(case)
    assert (restored_one.virtual, restored_one.in_container) == (machine.virtual, machine.in_container)


def test_a_case_is_written_for_the_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bundled(tmp_path / "b.tar.gz", faulty(FAULTS["errors.ecc_now"][0]))
    words = ["case", str(path), "--name", "memory", "--shows", "errors", "--out", str(tmp_path / "cases")]
    assert main([*words, "--rule", "errors.ecc_now"]) == 0
    assert main([*words, "--rule", "errors.new"]) == 3
    said = capsys.readouterr()
    assert "no such rule yet: errors.new" in said.out + said.err
    case = json.loads((tmp_path / "cases/memory.json").read_text())
    assert case["rules"] == ["errors.new"]
    assert PRIVATE not in json.dumps(case)
    assert diagnose(as_examined(case["collectors"])).faults[0].rule == "errors.ecc_now"


def test_what_a_bundle_may_not_contain_is_no_part_of_a_case(tmp_path: Path) -> None:
    path = bundled(tmp_path / "b.tar.gz", bare_metal())
    with tarfile.open(path) as archive:
        file = archive.extractfile("gpuprov-bundle/facts.json")
        assert file
        facts: dict[str, Any] = json.load(file)
    facts["collectors"]["environment"] = {"/etc/environment": {"TOKEN": PRIVATE}}
    facts["collectors"]["daemon_json"] = {"value": {"proxy": PRIVATE}}
    facts["collectors"]["system"]["kernel"] = PRIVATE
    facts["collectors"]["state"]["device_nodes"].append(PRIVATE)
    at = datetime.fromisoformat(facts["collected_at"]).timestamp() - 60
    log = f"{at} NVRM: Xid (PCI:0000:00:06): 79, pid=1, name={PRIVATE}, GPU has fallen\n{at} {PRIVATE}\n"
    other = rewritten(tmp_path / "other.tar.gz", facts__json=json.dumps(facts), kernel_log__txt=log)
    case = chosen(restored(read_bundle(other)))
    assert PRIVATE not in json.dumps(case)
    assert [text for _, text in case["kernel_log"]["kept"]] == ["NVRM: Xid (PCI:0000:00:06): 79"]


@pytest.mark.parametrize(
    "files",
    [
        {"facts__json": "{}"},
        {"facts__json": '{"schema": "gpuprov.bundle/1", "collectors": []}'},
        {"facts__json": "[" * 100_000},
        {"other__txt": "x"},
        {
            "facts__json": json.dumps(
                {"schema": SCHEMA, "collectors": {"kernel_log": {}}, "collected_at": "x"}
            )
        },
    ],
)
def test_another_archive_is_refused(files: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        read_bundle(rewritten(tmp_path / "b.tar.gz", **files))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_an_archive_with_another_kind_of_file_is_refused(kind: bytes, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("gpuprov-bundle/facts.json")
        entry.type, entry.linkname = kind, "facts.json"
        archive.addfile(entry)
    with pytest.raises(InvalidInput):
        read_bundle(tmp_path / "b.tar.gz")


@pytest.mark.parametrize(
    "data",
    [b"", b"no archive", gzip.compress(b"no archive", mtime=0), gzip.compress(bytes(UNPACKED + 1), mtime=0)],
)
def test_no_archive_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    path.write_bytes(data)
    with pytest.raises(InvalidInput):
        read_bundle(path)


def _header(kind: bytes, size: int = 0) -> bytes:
    """Return the header of a member of a tar archive."""
    entry = tarfile.TarInfo("gpuprov-bundle/facts.json")
    entry.type, entry.size = kind, size
    return entry.tobuf(tarfile.USTAR_FORMAT)


SPARSE = b"24 GNU.sparse.map=a,b,c\n" + b"22 GNU.sparse.size=zz\n"


@pytest.mark.parametrize(
    "data",
    [
        (_header(tarfile.GNUTYPE_LONGNAME, 1) + bytes(512)) * 4000,
        _header(tarfile.XHDTYPE) * 4000,
        _header(tarfile.XHDTYPE, len(SPARSE)) + SPARSE.ljust(512, b"\0") + _header(tarfile.REGTYPE),
        _header(tarfile.REGTYPE) * 17,
    ],
    ids=["long names", "extended headers", "sparse", "many files"],
)
def test_headers_that_tarfile_cannot_read_are_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    path.write_bytes(gzip.compress(data, mtime=0))
    with pytest.raises(InvalidInput, match="is not a bundle"):
        read_bundle(path)


@pytest.mark.parametrize("name", sorted(bare_metal()))
def test_nonsense_in_a_bundle_is_left_out(name: str) -> None:
    for nonsense in (None, [], {}, "x", 7, {"text": None}, [[None]], {"stdout": "x", "text": 3}):
        chosen(restored({name: nonsense}))


def test_a_kernel_and_its_files_are_those_of_modinfo() -> None:
    """Put the kernel's name once into each line: the product of two texts of a bundle has no limit."""
    lines = ["filename: updates/nvidia.ko", "filename: filename: x", "description: the filename: of"]
    [(kernel, text)] = restored({"disk_modules": {"6.1.0-1": lines, "k" * 20_000: lines}})[
        "disk_modules"
    ].items()
    assert (kernel, text.count("/lib/modules/6.1.0-1/")) == ("6.1.0-1", 2)


def test_a_defect_of_a_maintainers_command_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("maintenance.case.read_bundle", lambda path: {}["x"])
    (tmp_path / "b").touch()
    words = ["case", str(tmp_path / "b"), "--name", "x", "--shows", "y", "--rule", "bus.lost"]
    assert main(words) == Exit.FAILED
    assert re.match(
        r"scripts/catalog: unexpected KeyError at [a-z._]+:\d+: 'x'; GPU", capsys.readouterr().err
    )


def test_a_name_of_a_bundle_is_no_markup() -> None:
    """Refuse a key with markup, which is written as it is: it took 5.9 GB of memory from 13 KB."""
    for key in ("a xmlns='u'", "a><b", "", "a b"):
        assert restored({"smi": {"stdout": [{key: "1"}]}})["smi"] == {"error": "not in a bundle"}
