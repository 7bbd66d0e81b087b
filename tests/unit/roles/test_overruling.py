"""Sources that override settings: each setting and component names them, drift and verify check them.

The documentation page lists the same sources.
"""

from __future__ import annotations

from collections import Counter

from gpuprov.drift.observations import OBSERVERS
from gpuprov.drift.observations.registry import NAMERS
from gpuprov.roles import OVERRULED, ROLES
from tests import ROOT
from tests.campaign._overruling_table import markdown, verify_tests
from tests.lab.overruling import ELSEWHERE, WAYS, WITH_CUDA, rounds, unmatched


def test_every_setting_and_component_says_who_could_overrule_it() -> None:
    stated = {name for role in ROLES for name in (*role.settings, *role.components)}
    assert stated - {each.of for each in OVERRULED} == set()


def test_both_witnesses_look_at_each() -> None:
    checks = {each.check for each in OVERRULED}
    assert checks - OBSERVERS.keys() == set()
    assert checks - verify_tests().keys() == set()


def test_what_apply_leaves_alone_has_a_name() -> None:
    assert {each.check for each in OVERRULED if each.apply == "fails"} - NAMERS.keys() == set()


def test_each_is_tried_or_excused_and_nothing_else_is() -> None:
    stated = {(each.check, each.by) for each in OVERRULED}
    assert unmatched() == set()
    assert {(way.check, way.by) for way in (*WAYS, *WITH_CUDA)} | ELSEWHERE.keys() == stated
    places = {(way.check, way.by): bool(way.place) for way in (*WAYS, *WITH_CUDA)}
    answers = {(each.check, each.by): each.apply for each in OVERRULED}
    assert [key for key, named in places.items() if named != (answers[key] == "fails")] == []


def test_rounds_try_each_way_once_and_no_check_twice_at_a_time() -> None:
    turns = list(rounds(WAYS, {way.check for way in WAYS}))
    assert Counter(way for turn in turns for way in turn) == Counter(WAYS)
    assert all(len({way.check for way in turn}) == len(turn) for turn in turns)
    assert all(len(turn) == 1 for turn in turns if any(way.alone for way in turn))


def test_the_page_is_what_the_code_says() -> None:
    assert (ROOT / "docs/effective.md").read_text(encoding="utf-8") == markdown(), (
        "scripts/campaign mutations --markdown >docs/effective.md"
    )
