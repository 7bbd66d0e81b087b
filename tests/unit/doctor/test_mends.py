"""Commands that the doctor prints: a name from a machine is one quoted word, never a command."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gpuprov.doctor.judge import diagnose
from tests.unit.doctor.faults import FAULTS
from tests.unit.doctor.machines import as_examined, bare_metal
from tests.unit.samples import sample

CASES = [(name, number) for name, changes in FAULTS.items() for number in range(len(changes))]
HOSTILE = "$(x)`x`;x&&x|x>x"
QUOTED = re.compile(rf"'[^']*{re.escape(HOSTILE)}[^']*'")


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_name_of_the_machines_is_quoted(name: str, number: int) -> None:
    result = bare_metal()
    FAULTS[name][number](result)
    plain = json.dumps(result)
    mends = [line for fault in diagnose(as_examined(result)).faults for line in fault.mend]
    words = {word for line in mends for word in re.split(r"[\s'\"=,:;()/]+", line) if len(word) > 3}
    for word in sample(sorted(word for word in words if word in plain), 4, f"{name} {number}"):
        hostile = _renamed(result, word)
        for fault in diagnose(as_examined(hostile)).faults:
            for line in fault.mend:
                assert HOSTILE not in QUOTED.sub("", line), (fault.rule, line)


def _renamed(facts: Any, word: str) -> Any:
    """Return the facts with a hostile suffix on each `word`, except in keys that gpuprov defines."""
    if isinstance(facts, str):
        return facts.replace(word, word + HOSTILE)
    if isinstance(facts, dict):
        return {_key(key, word): _renamed(value, word) for key, value in facts.items()}
    return [_renamed(each, word) for each in facts] if isinstance(facts, list) else facts


def _key(key: str, word: str) -> str:
    """Return the key with hostile text after a word, if it is one that the machine chooses."""
    return key.replace(word, word + HOSTILE) if not key.islower() or "/" in key else key
