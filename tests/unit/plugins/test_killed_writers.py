"""Writers killed before each of their calls, and planted links: an excerpt of `scripts/campaign writers`."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from tests.campaign._writers_table import CONTROLS, WRITERS, Writer
from tests.campaign.writers import killed, outcome, tried

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or platform.machine() != "x86_64", reason="needs root and the registers of x86_64"
)
QUICK = [each for each in WRITERS if each.name.startswith(("node: ", "controller: "))]


@pytest.mark.thorough
@pytest.mark.parametrize("writer", QUICK, ids=lambda each: each.name)
def test_the_file_is_the_old_one_or_the_new_one(writer: Writer, tmp_path: Path) -> None:
    for above in tmp_path.parents[:2]:
        above.chmod(0o755)
    new = outcome(writer, tmp_path)
    trials = list(killed(writer, new, tmp_path))
    assert len(trials) > 5
    trials += [tried(writer, fault, new, tmp_path) for fault in ("link", "folder", "temp")]
    assert [each.wrong for each in trials if each.wrong or each.lost] == []


@pytest.mark.parametrize("writer", CONTROLS, ids=lambda each: each.name)
def test_a_writer_that_is_wrong_is_found(writer: Writer, tmp_path: Path) -> None:
    new = outcome(writer, tmp_path)
    assert any(each.wrong or each.lost for each in killed(writer, new, tmp_path))
