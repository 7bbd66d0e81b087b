"""Programs that the lab runs on this machine, and its messages meanwhile."""

from __future__ import annotations

import re

import pytest

from gpuprov.errors import NodeFailed
from gpuprov_lab.host import execute_aloud


def test_something_is_said_while_a_long_program_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    execute_aloud(["sh", "-c", "echo one; echo two >&2; sleep 1; echo three"], timeout=30, every=0.2)
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(re.fullmatch(r"lab: +\d+ s: two", line) for line in lines)


def test_a_long_program_that_fails_carries_its_last_words() -> None:
    with pytest.raises(NodeFailed, match="ended with 3: no such mirror"):
        execute_aloud(["sh", "-c", "echo no such mirror; exit 3"], timeout=5)


def test_a_program_that_does_not_end_is_ended() -> None:
    with pytest.raises(NodeFailed, match="ended with -9: begun"):
        execute_aloud(["sh", "-c", "echo begun; exec sleep 60"], timeout=0.3)
