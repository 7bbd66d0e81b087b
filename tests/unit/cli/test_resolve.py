"""`gpuprov resolve`, `explain` and `catalog`: exit codes, JSON shapes, batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuprov.cli import resolve
from gpuprov.cli.common.group import run
from tests import is_defect

Capture = pytest.CaptureFixture[str]


def _json(capsys: Capture, *arguments: str) -> tuple[int, Any]:
    """Run a command line with JSON output; return exit code and document."""
    code = run([*arguments, "-o", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_answer_has_the_shape_it_promises(capsys: Capture) -> None:
    code, document = _json(capsys, "resolve", "--gpu", "NVIDIA H200", "--os", "Ubuntu 24.04")
    assert code == 0
    assert (document["schema"], document["verdict"]) == ("gpuprov.resolve/1", "ok")
    assert {
        "driver",
        "branch",
        "module",
        "cuda",
        "cudnn",
        "nccl",
        "container_toolkit",
        "fabricmanager",
    } <= set(document["stack"])
    assert {"dcgm", "imex", "compat"} <= set(document["stack"])
    for finding in (*document["reasons"], *document["warnings"], *document["violations"]):
        assert set(finding) == {"rule", "text", "source"}
    assert {"names", "version", "repository"} <= set(document["packages"]["driver"])


def test_exit_codes(capsys: Capture) -> None:
    """Check `resolve`'s exit codes: 5 with no stack that works, 2 for a wrong input."""
    assert run(["resolve", "--gpu", "V100 SXM2 16GB", "--os", "ubuntu22.04", "--cuda", "13.0"]) == 5
    assert "what would work, with one change" in capsys.readouterr().out
    assert run(["resolve", "--gpu", "H100", "--os", "ubuntu22.04"]) == 2
    said = capsys.readouterr().err
    assert "ambiguous" in said
    assert "H100 NVL" in said
    assert run(["resolve", "--os", "ubuntu22.04"]) == 2
    assert run(["resolve", "--gpu", "L4"]) == 2
    assert run(["resolve", "--gpu", "L4", "--os", "ubunut22.04"]) == 2
    assert "ubuntu22.04" in capsys.readouterr().err


def test_batch_answers_in_order_and_goes_on_after_a_bad_line(tmp_path: Path, capsys: Capture) -> None:
    lines = [
        '{"gpu": "L4", "os": "rhel9", "driver": null, "arch": "x86_64", "id": 7}',
        "not json",
        '{"gpu": ["B200", "Tesla P40"], "os": "ubuntu22.04"}',
        '{"gpu": "V100", "os": "ubuntu22.04"}',
        '{"gpu": "L4", "os": "rhel9", "drvier": "580"}',
        "[]",
        '{"gpu": "L4", "os": "rhel9", "driver": 595, "cuda": "none", "cudnn": "none"}',
    ]
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(lines) + "\n")
    assert run(["resolve", "--batch", str(path)]) == 2
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [a["verdict"] for a in answers] == ["ok", "error", "refused", "error", "error", "error", "ok"]
    assert answers[0]["id"] == 7
    assert answers[1]["error"]["line"] == 2
    assert answers[6]["stack"]["cuda"] == "none"


def test_an_answer_s_stack_may_be_fed_back_as_it_is(tmp_path: Path, capsys: Capture) -> None:
    _, first = _json(capsys, "resolve", "--gpu", "8x NVIDIA H200", "--os", "ubuntu24.04")
    path = tmp_path / "again.jsonl"
    path.write_text(json.dumps({"gpu": ["NVIDIA H200"] * 8, **first["stack"]}))
    assert run(["resolve", "--batch", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["stack"] == first["stack"]


def test_a_line_without_an_end_is_one_error(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "LINE_BYTES", 200)
    path = tmp_path / "requests.jsonl"
    good = '{"gpus": ["L4"], "os": "debian12"}'
    path.write_text(f"{'x' * 1000}\n{'y' * 200}\n{good}\n{'z' * 1000}")
    lengths = [len(line) for line in resolve._lines(str(path))]
    assert lengths == [201, 201, len(good) + 1, 201]
    assert run(["resolve", "--batch", str(path)]) == 2
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer.get("error", {}).get("line") for answer in answers] == [1, 2, None, 4]


def test_batch_from_nowhere_is_a_usage_error(capsys: Capture) -> None:
    assert run(["resolve", "--batch", "/nowhere/at-all.jsonl"]) == 2
    assert run(["resolve", "--batch", "-", "--gpu", "L4"]) == 2
    assert not is_defect(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("component", "newer", "rule"),
    [
        ("cuda", "13.0.3", "gpu-cuda"),
        ("cudnn", "9.11.1.4", "cudnn-gpu"),
        ("driver", "590.48.01", "gpu-driver"),
    ],
)
def test_explain_says_what_a_newer_one_would_need(
    capsys: Capture, component: str, newer: str, rule: str
) -> None:
    code, document = _json(
        capsys, "explain", component, "--gpu", "Tesla V100-SXM2-16GB", "--os", "ubuntu22.04"
    )
    assert code == 0
    assert document["because"]
    tried = {each["value"]: {finding["rule"] for finding in each["needs"]} for each in document["newer"]}
    assert rule in tried[newer]


def test_explain_refuses_an_unknown_component(capsys: Capture) -> None:
    assert run(["explain", "kernels", "--gpu", "L4", "--os", "rhel9"]) == 2
    assert "driver" in capsys.readouterr().err


@pytest.mark.parametrize("table", ["gpus", "drivers", "cuda", "cudnn", "nccl", "os", "frameworks"])
def test_catalog_tables(capsys: Capture, table: str) -> None:
    """Check that each table of the catalog is printed, as JSON and with one line for each record."""
    code, document = _json(capsys, "catalog", table)
    assert code == 0
    assert document["schema"] == "gpuprov.catalog/1"
    assert document["records"]
    assert run(["catalog", table]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(document["records"]) + 1


def test_catalog_show(capsys: Capture) -> None:
    """Check `catalog show` for a GPU, a driver and a system."""
    _, gpu = _json(capsys, "catalog", "show", "H100-SXM5-80GB")
    assert gpu["record"]["pci_device_ids"] == ["2330"]
    assert all(" (" in source for source in gpu["record"]["source"])
    _, branch = _json(capsys, "catalog", "show", "580.95.05")
    assert branch["record"]["branch"] == 580
    _, system = _json(capsys, "catalog", "show", "rocky9.4")
    assert system["record"]["id"] == "rhel9"
    assert run(["catalog", "show", "nothing-like-it"]) == 2
    assert run(["catalog", "gpuz"]) == 2
    assert run(["catalog", "show", "A100-SXM4-80GB"]) == 0
    assert "sources" in capsys.readouterr().out
