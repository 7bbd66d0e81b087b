"""Samples of long tables of cases."""

from __future__ import annotations

import pytest

from tests.unit.samples import ALL, sample


@pytest.fixture(autouse=True)
def no_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take parts, also in a run of all cases."""
    monkeypatch.delenv(ALL, raising=False)


def test_samples_of_different_names_contain_all_cases() -> None:
    found = [sample(range(10), 3, str(name)) for name in range(20)]
    assert {case for cases in found for case in cases} == set(range(10))
    assert {len(cases) for cases in found} == {3, 4}


@pytest.mark.parametrize(("cases", "expected"), [("a", ["a"]), ("", [])])
def test_a_short_table_has_at_least_one_case(cases: str, expected: list[str]) -> None:
    assert sample(cases, 4, "name") == expected


def test_a_campaign_tries_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALL, "1")
    assert sample(range(10), 3, "name") == list(range(10))
