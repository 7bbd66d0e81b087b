"""Commands on a terminal, as tests of the lab run them: each ends, and answers its question."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.lab.terminal import typed


def test_a_question_is_answered(tmp_path: Path) -> None:
    words = ["sh", "-c", "printf 'Continue? '; read word; echo got $word; exit 3"]
    code, shown = typed(tmp_path, words, "Continue", "yes")
    assert code == 3
    assert "got yes" in shown


@pytest.mark.parametrize("closed", ["", "exec <&- >&- 2>&-;"])
def test_a_command_that_does_not_end_is_killed(tmp_path: Path, closed: str) -> None:
    begun = time.monotonic()
    code, shown = typed(tmp_path, ["sh", "-c", f"echo begun; {closed} sleep 8; :"], "no question", "", 1)
    assert (code, shown.strip()) == (-9, "begun")
    assert time.monotonic() - begun < 6
