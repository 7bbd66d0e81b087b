"""Table of mutations compared with the list of all checks."""

from __future__ import annotations

from collections import Counter

from gpuprov.drift.observations import OBSERVERS
from tests.lab.mutations import MUTATIONS, excused
from tests.lab.overruling import WAYS, WITH_CUDA

NAMED = {check for mutation in MUTATIONS for check in mutation.checks}
OVERRULED = {way.check for way in (*WAYS, *WITH_CUDA)}
SILENCED = {"driver.answers"}
"""Checks named by all mutations that silence the driver."""


def test_every_check_is_contradicted_once_at_least() -> None:
    assert {check for check in set(OBSERVERS) - NAMED - OVERRULED - SILENCED if not excused(check)} == set()


def test_nothing_is_named_that_is_no_check() -> None:
    assert set(OBSERVERS) >= NAMED | OVERRULED


def test_nothing_is_excused_that_is_put_to_the_test() -> None:
    assert [check for check in NAMED if excused(check)] == []


def test_each_mutation_has_its_own_name_and_says_something() -> None:
    assert [name for name, times in Counter(each.name for each in MUTATIONS).items() if times > 1] == []
    assert [each.name for each in MUTATIONS if not (each.checks or each.silences)] == []
