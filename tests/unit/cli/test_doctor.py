"""`gpuprov doctor` on the command line, with output for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

from gpuprov.cli.common.group import run
from tests import ROOT
from tests.unit.doctor.faults import FAULTS
from tests.unit.doctor.machines import AT, Collectors, bare_metal

RECORDED = ROOT / "tests/recorded/doctor/h200x2.json"


def saved(folder: Path, collectors: Collectors) -> str:
    """Write a file as `--save` does and return its path."""
    path = folder / "look.json"
    document = {"schema": "gpuprov.facts/1", "host": "gpu01", "collected_at": AT, "seconds": 0.4}
    path.write_text(json.dumps({**document, "collectors": collectors}))
    return str(path)


def sick() -> Collectors:
    """Return the facts of a machine whose libraries differ from its driver."""
    result = bare_metal()
    FAULTS["driver.mismatch"][0](result)
    return result


def test_a_real_machine_is_not_sick(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--facts", str(RECORDED)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("gpu02: no fault was found; 2 rules not checked\n  inside a container:")


def test_a_healthy_server_is_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--facts", saved(tmp_path, bare_metal())]) == 0
    assert capsys.readouterr().out == "gpu01: healthy\n"


def test_a_fault_says_how_it_is_known_and_what_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "--facts", saved(tmp_path, sick())]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == (
        "  broken    the loaded module is 580.159.04, the libraries are 580.200.01: every CUDA program "
        "fails  [driver.mismatch]"
    )
    labels = [line.split()[0] for line in lines[2:] if line[12:13].strip()]
    assert labels[:5] == ["seen", "cause", "mend", "keep", "source"]


def test_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check the document of `doctor -o json` for a sick machine, and exit code 1."""
    assert run(["doctor", "--facts", saved(tmp_path, sick()), "-o", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    [host] = document["hosts"]
    assert (document["schema"], host["host"], host["verdict"]) == ("gpuprov.doctor/1", "gpu01", "sick")
    first = host["faults"][0]
    assert (first["rule"], first["severity"]) == ("driver.mismatch", "broken")
    assert first["mend"][0].startswith("sudo systemctl stop nvidia-persistenced")


def test_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check the HTML, JUnit and Prometheus files of a sick machine."""
    page, junit, metrics = (tmp_path / name for name in ("p.html", "j.xml", "m.prom"))
    result = sick()
    result["kernel_log"] = {"error": "no <kernel> log can be read"}
    files = ["--html", str(page), "--junit", str(junit), "--prometheus", str(metrics)]
    assert run(["doctor", "--facts", saved(tmp_path, result), "--brief", *files]) == 1
    assert "driver.mismatch" in page.read_text()
    assert "no &lt;kernel&gt; log" in page.read_text()
    suite = fromstring(junit.read_text()).find("testsuite")  # noqa: S314 - written by us
    assert suite is not None
    assert int(suite.get("failures", "0")) >= 1
    assert int(suite.get("skipped", "0")) >= 5
    named = 'gpuprov_doctor_fault{node="gpu01",rule="driver.mismatch",severity="broken"} 1.0'
    assert named in metrics.read_text()
    capsys.readouterr()


def test_one_question_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 2
    assert run(["doctor", "gpu01", "--local"]) == 2
    broken = tmp_path / "x.json"
    broken.write_text("[]")
    assert run(["doctor", "--facts", str(broken)]) == 2
    assert "a file written by `gpuprov doctor --save`" in capsys.readouterr().err


def test_a_host_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["doctor", "root@127.0.0.1:1", "--known-hosts", str(tmp_path / "none"), "-o", "json"])
    [host] = json.loads(capsys.readouterr().out)["hosts"]
    assert (code, host["verdict"]) == (4, "failed")
    assert host["error"]


def test_this_machine_is_looked_at_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "look.json"
    code = run(["doctor", "--local", "--save", str(kept), "-o", "json"])
    here = json.loads(capsys.readouterr().out)["hosts"][0]
    assert code in (0, 1)
    assert run(["doctor", "--facts", str(kept), "-o", "json"]) == code
    again = json.loads(capsys.readouterr().out)["hosts"][0]
    assert again["faults"] == here["faults"]
