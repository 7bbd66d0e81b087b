"""`gpuprov nccl derive` with saved facts in another format than the probe's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuprov.cli.common.group import run
from tests.unit.doctor.machines import AT, bare_metal


@pytest.mark.parametrize("wrong", [{"a": 1}, 7])
def test_a_rate_of_another_shape_ends_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: Any
) -> None:
    collectors = bare_metal()
    for port in collectors["hcas"]:
        port["rate"] = wrong
    head = {"schema": "gpuprov.facts/1", "host": "gpu01", "collected_at": AT, "seconds": 0.4}
    (tmp_path / "facts.json").write_text(json.dumps({**head, "collectors": collectors}))
    assert run(["nccl", "derive", str(tmp_path / "facts.json")]) == 1
    assert capsys.readouterr().err.startswith("gpuprov: ")
