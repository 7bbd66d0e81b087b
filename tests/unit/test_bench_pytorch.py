"""Comparison of accepted rates with PyTorch's: what it takes together, what it limits, what fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuprov.accept.judge import document, judge
from tests.bench import pytorch
from tests.unit.accept.recorded import recorded

RATES = {"bf16": {"0": 677.8, "1": 677.0}, "all_reduce": {"all": 353.5}, "memory_read": {"0": 3000.0}}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Write accepted rates and those of PyTorch to files; return the words of the command line."""
    accepted, rates = tmp_path / "accept.json", tmp_path / "rates.json"
    accepted.write_text(json.dumps(document(judge({"gpu01": recorded("quick", "h200x4")}))))
    rates.write_text(json.dumps({"rates": RATES}))
    return ["pytorch", str(accepted), "--rates", str(rates)]


def test_medians_are_compared(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Print each measurement. None fails: reading memory has no limit, as PyTorch sums it up."""
    monkeypatch.setattr("sys.argv", files)
    assert pytorch.main() == 0
    printed = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()[1:]}
    assert printed["bf16"][-2:] == ["677.4", "1.026"]
    assert printed["fp64"][-2:] == ["-", "-"]
    assert printed["memory_read"][5].startswith("1.5")


@pytest.mark.parametrize("theirs", [630.0, 760.0])
def test_a_ratio_outside_its_limits_fails(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], theirs: float
) -> None:
    Path(files[-1]).write_text(json.dumps({"rates": RATES | {"bf16": {"0": theirs}}}))
    monkeypatch.setattr("sys.argv", files)
    assert pytorch.main() == 1
    assert "missed: bf16 " in capsys.readouterr().out
