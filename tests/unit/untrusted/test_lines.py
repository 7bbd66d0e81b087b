"""Lines of a text in pieces: the same lines as of the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprov.untrusted import lines, lines_of


@pytest.mark.parametrize("text", ["", "\n", "a", "a\n", "a\n\nb", "\n" * 200_000, "ab\n" * 70_000 + "c"])
def test_pieces_have_the_lines_of_the_text(text: str) -> None:
    assert list(lines_of(text)) == text.split("\n")


@given(st.text("ab\n", max_size=40), st.integers(1, 10), st.integers(1, 5))
def test_lines_are_cut_and_never_lost(text: str, piece: int, longest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_PIECE", piece)
        assert list(lines_of(text, longest)) == [line[:longest] for line in text.split("\n")]
