"""Mutants of the campaign: their changes of code, and the places that stay."""

from __future__ import annotations

import ast

import pytest

from tests import ROOT
from tests.campaign._mutants_equivalent import EQUIVALENT
from tests.campaign._mutations_of_code import mutants
from tests.campaign.mutants import changed


def changes(body: str) -> list[str]:
    """Return the changed lines of a function with a body of one line."""
    text = f"def first(a: int = 3) -> int:\n    {body}\n"
    found = mutants("gpuprov/first.py", text)
    for mutant in found:
        ast.parse(mutant.new)
        assert (mutant.first, mutant.last) == (2, 2)
    return sorted(changed(mutant.diff(text)).removeprefix(f"{body} -> ") for mutant in found)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("b = a < c", ["b = (a <= c)"]),
        ("b = a not in c", ["b = (a in c)"]),
        ("b = a and c", ["b = (a or c)"]),
        ("b = not a", ["b = (a)"]),
        ("b = True, 3", ["b = False, 3", "b = True, 4"]),
        ("return a", ["return None"]),
        ("raise a", ["pass"]),
        ("a.b(c)", ["pass"]),
        ("b = a if c else d", ["b = a if (not (c)) else d"]),
        ("b = a if c is d else e", ["b = a if (c is not d) else e"]),
        (
            "b = [c for c in a if c >= d]",
            ["b = [c for c in a if (c > d)]", "b = [c for c in a if (not (c >= d))]"],
        ),
        ("b = 'é', a == c", ["b = 'é', (a != c)"]),
    ],
)
def test_each_operator_changes_one_place(body: str, expected: list[str]) -> None:
    assert changes(body) == expected


@pytest.mark.parametrize("body", ["return None", "b: Literal[3]", 'f"{a == 3}"', "b = a"])
def test_other_code_stays(body: str) -> None:
    """Check that code without a place for a mutation gives none."""
    assert changes(body) == []


def test_a_change_in_a_statement_of_several_lines_is_reached_from_its_first_one() -> None:
    (mutant,) = mutants("first.py", "def first():\n    b = (\n        a\n        == c\n    )\n")
    assert (mutant.first, mutant.last) == (2, 4)


@pytest.mark.parametrize("path", sorted({path for path, _ in EQUIVALENT}))
def test_a_change_without_effect_is_still_one_of_the_code(path: str) -> None:
    text = (ROOT / path).read_text()
    made = {changed(mutant.diff(text)) for mutant in mutants(path, text)}
    assert {change for of, change in EQUIVALENT if of == path} <= made
