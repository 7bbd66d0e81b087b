"""Checks that docstrings and comments have plain words."""

from __future__ import annotations

import pytest

from tests import ROOT
from tests.prose.words import in_folder, phrases

FOLDERS = ("gpuprov", "lab", "maintenance", "plugins", "roles", "tests")
"""Folders with Python files; their docstrings and comments avoid the phrases of `tests/prose/words.py`."""


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_and_comments_have_plain_words(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{place.line}: {place.seen!r}; write: {place.instead}"
        for path, place in in_folder(ROOT / folder)
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
    for decorator in ("property", "pytest.fixture", 'pytest.fixture(scope="module")', "fixture()"):
        assert phrases(f"@{decorator}\n{function}") == [], decorator
    assert phrases(function.replace("The", "Return the")) == []
    assert [place.seen for place in phrases(f"async {function}")] == ["The"]


def test_a_comment_is_no_text_in_code() -> None:
    assert phrases('"""Title."""\nnames = "#nobody"  # noqa: RUF\n') == []
    assert [place.line for place in phrases("names = (\n    1,  # nobody\n)\n")] == [2]
