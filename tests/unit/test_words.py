"""Checks that docstrings and comments have plain words."""

from __future__ import annotations

import pytest

from tests import ROOT
from tests.prose.words import in_folder, phrases

ROOMS = (
    "accept",
    "topology",
    "nccl",
    "catalog",
    "locking",
    "roles",
    "drift",
    "verify",
    "lab",
    "doctor",
    "report",
    "model",
    "probe/parse",
)
"""Rooms, or files of rooms, whose docstrings and comments avoid the phrases of `tests/prose/words.py`."""
LATER: tuple[str, ...] = ()
"""Files of these rooms that are not rewritten yet."""


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_and_comments_have_plain_words(room: str) -> None:
    later = {ROOT / "gpuprov" / each for each in LATER}
    found = [
        f"{path.relative_to(ROOT)}:{place.line}: {place.seen!r}; write: {place.instead}"
        for path, place in in_folder(ROOT / "gpuprov" / room)
        if path not in later and not later & set(path.parents)
    ]
    assert not found, "\n".join(found)


def test_a_phrase_is_found_in_docstrings_and_comments_alone() -> None:
    text = '"""What nobody reads."""\ntold = "nobody"  # whatever it is\n'
    assert [(place.line, place.seen) for place in phrases(text)] == [
        (1, "What"),
        (1, "nobody"),
        (2, "whatever"),
    ]


def test_a_function_begins_with_a_verb_and_a_property_may_not() -> None:
    function = 'def rate():\n    """The rate."""\n'
    assert [place.seen for place in phrases(function)] == ["The"]
    assert phrases(f"@property\n{function}") == []
    assert phrases(function.replace("The", "Return the")) == []
