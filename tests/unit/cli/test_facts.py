"""`gpuprov facts` on the command line, with output for people and for programs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from gpuprov.cli.common.group import run
from tests import H200


def test_a_saved_answer_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["facts", "--smi-xml", str(H200 / "q.xml"), "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["driver_version"], document["cuda_version"]) == (
        "gpuprov.smi/1",
        "580.159.04",
        "13.0",
    )
    assert "error" not in document
    gpu = document["gpus"][3]
    assert (gpu["index"], gpu["pci_bus_id"], gpu["persistence_mode"]) == (3, "00000000:00:09.0", True)
    assert gpu["clocks"]["applications_graphics"] == 1980
    assert gpu["clocks"]["max_memory"] == 3201
    assert (gpu["ecc"], gpu["mig"]) == (
        {"current": True, "pending": True},
        {"current": False, "pending": False},
    )
    assert gpu["memory_total_mib"] == 143771


def test_a_saved_answer_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["facts", "--smi-xml", str(H200 / "q.xml")]) == 0
    out = capsys.readouterr().out
    assert "driver   580.159.04, CUDA up to 13.0" in out
    assert "0    NVIDIA H200  0000:00:06.0  143771 MiB  on           1980/3201 MHz  on   off  700 W" in out


def test_an_error_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.309\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert run(["facts", "--smi-xml", "-", "-o", "json"]) == 1
    result = capsys.readouterr()
    document = json.loads(result.out)
    assert document["error"].startswith("Failed to initialize NVML: Driver/library version mismatch")
    assert document["gpus"] == []
    assert result.err.startswith("gpuprov: -: Failed to initialize NVML: Driver/library version mismatch")


RUBBISH = {
    "fleet": b"groups:\n  train: {profile: dev-t4, hosts: gpu01, os: debian12}\n",
    "empty": b"",
    "zeros": bytes(1000),
    "no-gpu": b"<nvidia_smi_log></nvidia_smi_log>",
}


@pytest.mark.parametrize("content", RUBBISH.values(), ids=RUBBISH)
def test_what_is_no_answer_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "fleet.yml").write_bytes(content)
    assert run(["facts", "--smi-xml", str(tmp_path / "fleet.yml")]) == 1
    result = capsys.readouterr()
    assert result.out == ""
    assert result.err.startswith(f"gpuprov: {tmp_path}/fleet.yml: ")


def test_half_an_answer_shows_what_it_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "q.xml").write_bytes((H200 / "q.xml").read_bytes()[:-200])
    assert run(["facts", "--smi-xml", str(tmp_path / "q.xml")]) == 1
    result = capsys.readouterr()
    assert "580.159.04" in result.out
    assert "error" not in result.out
    assert result.err.startswith(f"gpuprov: {tmp_path}/q.xml: ")


def test_a_file_that_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["facts", "--smi-xml", str(tmp_path / "absent.xml")]) == 2
    assert "absent.xml: No such file or directory" in capsys.readouterr().err
    assert run(["facts", "--smi-xml", str(tmp_path)]) == 2


@pytest.mark.parametrize("arguments", [[], ["--local", "gpu01"], ["--local", "--smi-xml", "x"]])
def test_one_thing_at_a_time(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["facts", *arguments]) == 2
    assert "name one host, or give --local, or --smi-xml FILE" in capsys.readouterr().err


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """Check `facts --local`, as JSON and as text."""
    assert run(["facts", "--local", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "gpuprov.facts/1"
    assert run(["facts", "--local"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("host ")
    assert "nvidia-smi" in out


def test_a_port_that_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["facts", "root@gpu01:ssh"]) == 2
    assert "the port of 'root@gpu01:ssh' is not a number from 1 to 65535" in capsys.readouterr().err
