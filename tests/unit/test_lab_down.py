"""`gpuprov lab down` and how much it takes down."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from gpuprov import lab
from gpuprov.cli.lab import command


@pytest.mark.parametrize("words", [["--all", "--name", "one"], ["--all", "node1"]])
def test_all_labs_and_one_by_name_is_a_contradiction(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab, "lab_names", lambda: pytest.fail("it went on"))
    result = CliRunner().invoke(command, ["down", *words])
    assert "all labs" in str(result.exception)
