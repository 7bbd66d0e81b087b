"""Table of mutations compared with the list of all checks."""

from __future__ import annotations

import re
import subprocess
from collections import Counter

from gpuprov.drift.observations import OBSERVERS
from gpuprov.roles import OVERRULED
from tests.lab.mutations import BYSTANDERS, MUTATIONS, excused, turns
from tests.lab.mutations_with_dnf import (
    NO_COUNTERPART,
    OTHER_BYSTANDERS,
    OTHER_COMMANDS,
    OTHER_WAYS,
    tables,
)
from tests.lab.overruling import WAYS, WITH_CUDA
from tests.systems import OF_DNF

NAMED = {check for mutation in MUTATIONS for check in mutation.checks}
TRIED = {way.check for way in (*WAYS, *WITH_CUDA)}
SILENCED = {"driver.answers"}
"""Checks named by all mutations that silence the driver."""


def test_every_check_is_contradicted_once_at_least() -> None:
    assert {check for check in set(OBSERVERS) - NAMED - TRIED - SILENCED if not excused(check)} == set()


def test_nothing_is_named_that_is_no_check() -> None:
    assert set(OBSERVERS) >= NAMED | TRIED


def test_nothing_is_excused_that_is_put_to_the_test() -> None:
    assert [check for check in NAMED if excused(check)] == []


def test_each_mutation_has_its_own_name_and_says_something() -> None:
    assert [name for name, times in Counter(each.name for each in MUTATIONS).items() if times > 1] == []
    assert [each.name for each in MUTATIONS if not (each.checks or each.silences)] == []


def test_mutations_that_are_made_at_once_are_reported_by_different_checks() -> None:
    groups = turns(MUTATIONS)
    assert sorted(each.name for group in groups for each in group) == sorted(each.name for each in MUTATIONS)
    assert len(groups) < len(MUTATIONS) / 2
    for group in groups:
        checks = [check for each in group for check in each.checks]
        assert len(checks) == len(set(checks))
        assert len(group) == 1 or not any(each.alone or each.silences or each.reboots for each in group)


def test_changes_with_dnf_are_those_of_apt_with_other_commands() -> None:
    assert OTHER_COMMANDS.keys() <= {each.name for each in MUTATIONS}
    assert OTHER_BYSTANDERS.keys() <= BYSTANDERS.keys()
    ways = {str(way) for way in (*WAYS, *WITH_CUDA)}
    assert OTHER_WAYS.keys() <= ways
    assert NO_COUNTERPART.keys() <= ways - OTHER_WAYS.keys()
    answers = {(each.check, each.by): each.apply for each in OVERRULED}
    for system in OF_DNF:
        changes = tables(system)
        commands = [each.do for each in (*changes.mutations, *changes.ways, *changes.with_cuda)]
        commands += changes.bystanders.values()
        assert [do for do in commands if re.search(r"apt-|/apt/|dpkg|ssh\.service|reload ssh\b", do)] == []
        named = {(way.check, way.by): bool(way.place) for way in (*changes.ways, *changes.with_cuda)}
        assert [key for key, place in named.items() if place != (answers[key] == "fails")] == []


def test_each_edit_is_a_script_of_sed() -> None:
    """Check that sed can parse each script: the command of a change may end with another one."""
    changes = [tables(system) for system in ("debian12", *OF_DNF)]
    ways = [way for each in changes for way in (*each.ways, *each.with_cuda)]
    commands = {way.do for way in ways} | {each.do for every in changes for each in every.mutations}
    scripts = {found for do in commands for found in re.findall(r"sed (?:-i |-e )*'([^']*)'", do)}
    assert len(scripts) > 10
    for script in scripts:
        done = subprocess.run(["sed", script], input="", capture_output=True, text=True, check=False)
        assert done.returncode == 0, (script, done.stderr)
