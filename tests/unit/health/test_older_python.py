"""The program's rules in the oldest Pythons of nodes: they find the same faults as in this one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuprov.doctor.fault import RULES
from gpuprov.health import look
from gpuprov.roles.health import program
from tests.unit.doctor.faults import FAULTS
from tests.unit.doctor.machines import as_examined, bare_metal
from tests.unit.programs import older_python

JUDGE = """
if sys.version_info < (3, 11):
    amend()
unpack(sys.argv[1])
sys.path.insert(0, sys.argv[1])
from gpuprov.health import look
look.own_catalog()
answers = []
for document in json.load(sys.stdin):
    seen = look.judge(look.examine(document), {}, {})
    answers.append([[[each.rule, each.health] for each in seen.sights], sorted(seen.reasons), seen.unjudged])
json.dump(answers, sys.stdout)
"""
STRICTER = """
import datetime, re
class strict(datetime.datetime):
    @classmethod
    def fromisoformat(cls, text):
        if text.endswith("Z"):
            raise ValueError(text)
        return super().fromisoformat(text)
datetime.datetime = strict
def parse(*arguments, parse=re._parser.parse):
    tree = parse(*arguments)
    if "POSSESSIVE" in repr(tree) or "ATOMIC" in repr(tree):
        raise re.error("multiple repeat")
    return tree
re._compiler._parser = type("parser", (), dict(vars(re._parser), parse=staticmethod(parse)))
"""
"""Changes by which this Python refuses the same text as 3.10, for machines without an older one."""
UNJUDGED = {"3.9": {"containers.config", "network", "stack"}, "3.10": {"containers.config"}}
"""Concerns and rules that need a newer Python: for types of 3.10, for tomllib of 3.11."""


def concern(rule: str) -> str:
    """Return the concern of a rule."""
    return RULES[rule].predicate.__module__.rpartition(".")[2]


@pytest.mark.parametrize("version", ["3.9", "3.10"])
def test_an_older_python_finds_the_same_faults(version: str, tmp_path: Path) -> None:
    """Judge a healthy machine, and for each concern one with a fault."""
    changes = {rule.partition(".")[0]: change for rule, [change, *_] in FAULTS.items()}
    machines = [bare_metal() for _ in range(len(changes) + 1)]
    for change, machine in zip(changes.values(), machines[1:], strict=True):
        change(machine)
    documents = [as_examined(machine).to_answer() for machine in machines]
    older = older_python(version)
    script = tmp_path / "judge.py"
    begin = program().rpartition("\nif __name__")[0] + "\n"
    script.write_text(("" if older else STRICTER) + begin + JUDGE)
    command = [older or sys.executable, "-IBS", str(script), str(tmp_path / "modules")]
    done = subprocess.run(
        command, input=json.dumps(documents), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stderr == ""
    answers = json.loads(done.stdout)
    assert set(answers[0][2]) == (UNJUDGED[version] if older else set())
    for document, (sights, reasons, unjudged) in zip(documents, answers, strict=True):
        here = look.judge(look.examine(document), {}, {})
        left_out = {each.rule for each in here.sights if {each.rule, concern(each.rule)} & set(unjudged)}
        assert sights == [[each.rule, each.health] for each in here.sights if each.rule not in left_out]
        asked_the_catalog = {each for each in reasons if each.endswith("(ImportError)")}
        assert set(reasons) - asked_the_catalog == set(here.reasons)
        assert not asked_the_catalog or version == "3.9"
