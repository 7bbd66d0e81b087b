"""Warnings about an old catalog, from the date and from a lock."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuprov.catalog import load
from gpuprov.catalog.releases import own
from gpuprov.cli.catalog import command
from gpuprov.errors import Exit
from gpuprov.locking.build import build_lock
from gpuprov.locking.catalogs.stale import FRESH_DAYS, stale
from gpuprov.model.lock import CatalogPin, Setting, write_lock
from tests.unit.locking.fleets import Write

AS_OF = date.fromisoformat(load().as_of)


def kinds(today: date) -> list[str]:
    """Return what is stale about the shipped catalog on a day."""
    return [each.what for each in stale(load(), own(), None, today)]


def test_a_catalog_grows_old() -> None:
    assert kinds(AS_OF) == kinds(AS_OF + timedelta(days=FRESH_DAYS)) == []
    assert kinds(AS_OF + timedelta(days=FRESH_DAYS + 1)) == ["age"]


def test_ends_of_life_since_then_are_told() -> None:
    (end,) = {branch.eol for branch in load().branches.values() if branch.branch == 580}
    assert end == "2028-06"
    result = [
        each.text for each in stale(load(), own(), None, date(2028, 7, 1)) if each.what == "end-of-life"
    ]
    assert any(text.startswith("driver branch 580 reached its end of life (2028-06)") for text in result)
    assert not any("branch 535 " in text for text in result)  # that one ended before the date of the catalog


def test_a_lock_that_pins_another_is_reported(one_group: Write, tmp_path: Path) -> None:
    lock = build_lock(one_group(driver="580"))
    assert not list(stale(load(), own(), lock, AS_OF))
    for pin, said in (
        (None, "pins no catalog"),
        (CatalogPin(version="2025.1.1", sha256="0" * 64), "pins an older catalog 2025.1.1"),
        (CatalogPin(version=str(own().version), sha256="0" * 64), "pins another catalog"),
    ):
        (result,) = stale(load(), own(), lock.model_copy(update={"catalog": pin}), AS_OF)
        assert said in result.text
        assert result.do == "gpuprov lock --upgrade"


def test_a_locked_driver_that_was_withdrawn_later_is_reported(one_group: Write, tmp_path: Path) -> None:
    lock = build_lock(one_group(driver="580.159.04"))
    issue = {
        "id": "withdrawn-580.159.04",
        "kind": "withdrawn",
        "drivers": ["580.159.04"],
        "condition": "by the vendor on 2026-12-01",
        "effect": "it corrupts memory",
        "remedy": "driver 580.178.04",
        "source": ["own"],
    }
    sources = {"own": {"title": "the vendor's page", "dated": "2026-12-01"}}
    (tmp_path / "drivers.json").write_text(json.dumps({"known_issues": [issue], "sources": sources}))
    (found,) = stale(load([tmp_path]), own(), lock, AS_OF)
    assert (found.what, found.do) == ("known-issue", "gpuprov lock --upgrade driver")
    assert found.text == (
        "train: driver 580.159.04 was withdrawn (by the vendor on 2026-12-01): it corrupts memory"
    )


@pytest.mark.parametrize(
    ("kernel", "fails"),
    [("7.1.0-3-generic", True), ("7.0.0-31-generic", False), ("running", False), (None, False)],
)
def test_a_locked_kernel_that_breaks_the_locked_driver_is_reported(
    kernel: str | None, fails: bool, one_group: Write
) -> None:
    lock = build_lock(one_group(driver="580.126.16"))
    group = lock.groups["train"]
    stated = {"kernel": Setting(value=kernel, reason="stated", source="fleet.yml")} if kernel else {}
    changed = group.model_copy(update={"settings": {**group.settings, **stated}})
    found = list(stale(load(), own(), lock.model_copy(update={"groups": {"train": changed}}), AS_OF))
    assert ["does not build against kernel 7.1.0" in each.text for each in found] == [True] * fails


def test_the_verb_says_it(one_group: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that `catalog check` reports a lock whose catalog is old or unknown."""
    path = tmp_path / "fleet.lock.yml"
    lock = build_lock(one_group(driver="580"))
    write_lock(lock.model_copy(update={"catalog": None}), path)
    said = CliRunner().invoke(command, ["check", "--lock", str(path), "-o", "json"], standalone_mode=False)
    assert said.return_value == Exit.DRIFT
    result = json.loads(said.stdout)
    assert result["catalog"] == {"version": str(own().version), "sha256": own().sha256, "as_of": load().as_of}
    assert "lock" in [each["what"] for each in result["stale"]]
