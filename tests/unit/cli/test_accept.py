"""`gpuprov accept` on the command line, with earlier measurements and on a machine without GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

from gpuprov.accept.judge import document, judge
from gpuprov.cli.accept import _baseline
from gpuprov.cli.common.group import run
from gpuprov.errors import InvalidInput
from gpuprov.files.runs import make_folder, state_dir
from gpuprov.history import keep
from gpuprov.history.record import of_acceptance
from gpuprov.model.documents import write_text
from gpuprov.report.plots import KEPT
from gpuprov.untrusted import json_text
from tests.unit.accept.recorded import recorded


@pytest.fixture
def measured(tmp_path: Path) -> str:
    """Path of a file as `-o json` writes it: a healthy node, one with a shared PCIe link, one in use."""
    names = {"gpu01": "quick", "gpu02": "pcie-saturated", "gpu03": "in-use"}
    judged = judge({node: recorded(name) for node, name in names.items()})
    path = tmp_path / "accept.json"
    path.write_text(json.dumps(document(judged)))
    return str(path)


def test_a_table_for_people(measured: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["accept", "--measured", measured]) == 1
    )  # the failed node decides the exit code, not the refused one
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "gpu01: accepted (2 x NVIDIA H200, quick, 20.54 s)"
    assert lines[1].startswith("gpu02: rejected (2 x NVIDIA H200, quick, 20.71 s), 5 faults")
    assert "  bad   GPU 0 h2d: 27.1 GB/s, 43% of its PCIe link's 63.02; at least 48 is expected" in "\n".join(
        lines
    )
    assert any(line.startswith("gpu03: refused: GPUs are in use: GPU 0: pid") for line in lines)
    assert "NVIDIA H200 on gpu[01-02]" in lines
    [row] = [line for line in lines if line.startswith("  bf16 ")]
    assert row.split()[4:6] == ["TFLOP/s", "69%"]
    [far] = [line for line in lines if line.startswith("  bf16_burst ")]
    assert far.endswith("no threshold known")


def test_a_document_for_programs(measured: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["accept", "--measured", measured, "-o", "json"])
    result = json.loads(capsys.readouterr().out)
    assert result["schema"] == "gpuprov.accept/1"
    assert [node["verdict"] for node in result["nodes"]] == ["accepted", "rejected", "refused"]
    first = {rate["measure"]: rate for rate in result["nodes"][0]["rates"]}["h2d"]
    assert (first["unit"], first["peak"], first["level"]) == ("GB/s", 63.02, "ok")
    assert first["floor"]["source"].startswith("Azure/azurehpc-health-checks")


def test_the_sites_floor(measured: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that `--floor` is compared and is named as the site's own."""
    run(["accept", "--measured", measured, "--floor", "bf16=750"])
    assert "at least 750 is expected (the site's own)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--floor", "bf16"], "expected NAME=VALUE, such as bf16=650"),
        (["--floor", "bf17=1"], "no such measurement; expected memory_read"),
        (["--floor", "bf16=nan"], "--floor bf16=nan; expected NAME=VALUE, such as bf16=650"),
        (["--floor", "bf16=inf"], "--floor bf16=inf; expected NAME=VALUE"),
        (["--floor", "bf16=0"], "--floor bf16=0; expected NAME=VALUE"),
        (["--floor", "bf16=-1"], "--floor bf16=-1; expected NAME=VALUE"),
        (["--baseline", "latest"], "there is no saved run of accept"),
        (["--measured", "/nowhere.json"], "/nowhere.json"),
        (["--local", "gpu01"], "more than one of NODES, --local and --measured; give one of them"),
        ([], "there is no lock fleet.lock.yml, and no host is named"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Check the message for arguments of `accept` that are wrong, and exit code 2."""
    monkeypatch.chdir(tmp_path)
    assert run(["accept", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{}", "[]", '{"schema": "gpuprov.accept/1", "nodes": [1]}', "no JSON"])
def test_another_file_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    assert run(["accept", "--measured", str(path)]) == 2
    assert "expected output of `gpuprov accept -o json`" in capsys.readouterr().err


def test_this_machine_has_no_driver_and_the_run_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["accept", "--local"]) == 1
    result = capsys.readouterr()
    assert "failed: libnvidia-ml.so.1 cannot be loaded; run `gpuprov doctor` on it" in result.out
    kept = Path(result.err.split("saved as ")[1].strip())
    assert json.loads(kept.read_text())["nodes"][0]["verdict"] == "failed"
    run(["history"])
    assert kept.parent.name in capsys.readouterr().out


def test_latest_is_the_last_run_of_the_same_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another fleet have a node of the same name, and the later run."""
    monkeypatch.chdir(tmp_path)
    for number, fleet in enumerate(("/a/fleet.lock.yml", "/b/fleet.lock.yml")):
        measured = {**recorded("quick"), "seconds": number}
        judged = judge({"gpu01": measured})
        name = f"2026112{number}-120000-accept-0000"
        write_text(make_folder(state_dir() / "runs" / name) / KEPT, json_text(document(judged)))
        keep(of_acceptance(name, judged, fleet), print)
    assert _baseline("latest", "/a/fleet.lock.yml")["gpu01"]["seconds"] == 0  # type: ignore[index]
    Path("fleet.lock.yml").touch()
    with pytest.raises(InvalidInput, match="no saved run of accept"):
        _baseline("latest", "/c/fleet.lock.yml")
    assert run(["report"]) == 2


def test_a_recorded_run_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judged = judge({"gpu01": recorded("quick"), "gpu02": recorded("p2p-disabled")})
    keep(of_acceptance("20261122-120000-accept-0000", judged, ""), print)
    junit = tmp_path / "junit.xml"
    run(["report", "20261122-120000-accept-0000", "--junit", str(junit)])
    cases = list(fromstring(junit.read_text()).iter("testcase"))  # noqa: S314 - our own
    failed = {(case.get("classname"), case.get("name")) for case in cases if case.find("failure") is not None}
    assert {("gpu02", "all_reduce.slow"), ("gpu02", "nccl.intra.transport")} <= failed
    assert "gpu01" in {case.get("classname") for case in cases}
    assert "gpu01" not in {node for node, _ in failed}
