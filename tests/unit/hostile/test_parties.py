"""Attacks by the parties of SECURITY.md, a few tries each; everything that the table names exists."""

from __future__ import annotations

import fnmatch
import os
import re

import pytest

from tests import ROOT
from tests.campaign import hostile
from tests.campaign._hostile import ways as registered  # noqa: F401
from tests.campaign._hostile.field import ACTORS, WAYS
from tests.campaign.hostile import LATE, Result, carry_out, tries_of

SHORT = 40
NEEDS_ROOT = ("user on a node", "node/doctor")
"""Attacks that need a mount namespace, or the rights of another user."""
PARTIES = (
    "node",
    "node that `repair` treats",
    "BMC that the file of BMCs states",
    "other user on a node",
    "builder",
    "worker",
    "controller",
    "other user on the controller",
    "mirror",
    "publisher of a catalog",
    "publisher of security advisories",
    "sender of a bundle",
    "publisher of a release",
    "metadata service",
    "assistant that calls `gpuprov mcp`",
    "author of an imported inventory",
    "author of a repository",
    "author of a pull request",
    "person who comments in a repository",
    "stranger on the network",
)


def table() -> dict[str, str]:
    """Return party → last column of its row in SECURITY.md."""
    text = (ROOT / "SECURITY.md").read_text().partition("## Parties")[2].partition("\n##")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: row[-1] for row in rows[1:]}


@pytest.mark.thorough
@pytest.mark.parametrize("key", WAYS)
def test_a_short_cut_of_the_campaign(key: str) -> None:
    if key.startswith(NEEDS_ROOT) and os.geteuid():
        pytest.skip("needs root")
    result = carry_out(WAYS[key], 0, tries_of(WAYS[key], SHORT), 3)
    assert (result.broken, result.reached) == ("", {})
    assert result.tries >= 1


@pytest.mark.parametrize(("hangs", "reached", "late"), [(1, set(), 1), (2, {(0, "hang")}, 0)])
def test_a_try_that_is_late_once_is_no_hang(
    monkeypatch: pytest.MonkeyPatch, hangs: int, reached: set[tuple[int, str]], late: int
) -> None:
    answers = iter([True] * hangs + [False] * 9)

    def process(result: Result, first: int, count: int, number: int) -> tuple[int, int]:
        """Hang in the first try, or do all."""
        if next(answers):
            result.reached[first, "hang"] = f"{LATE} 20 s"
            return first + 1, 1
        return first + count, 0

    monkeypatch.setattr(hostile, "_process", process)
    result = carry_out(next(iter(WAYS.values())), 0, 5, 1)
    assert (set(result.reached), result.late) == (reached, late)


def test_each_party_has_a_row() -> None:
    rows = list(table())
    assert [party for party in PARTIES if not any(row.startswith(party) for row in rows)] == []
    assert len(rows) == len(PARTIES)


def test_what_the_table_names_exists() -> None:
    """Check that the tests and tries that SECURITY.md names exist."""
    named = [name for held in table().values() for name in re.findall("`([^`]+)`", held)]
    tests = [name for name in named if name.startswith("tests/")]
    cells = [name for name in named if not name.startswith("tests/")]
    assert len(tests) >= 10
    assert [name for name in tests if not (ROOT / name).is_file()] == []
    assert [cell for cell in cells if not fnmatch.filter(WAYS, cell)] == []
    assert {way.actor for cell in cells for key, way in WAYS.items() if fnmatch.fnmatch(key, cell)} == set(
        ACTORS
    )
