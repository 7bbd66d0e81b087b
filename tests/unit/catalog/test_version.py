"""Comparison of versions as tuples of integers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprov.catalog import version

parts = st.lists(st.integers(0, 9999), min_size=1, max_size=5)


@given(parts, parts)
def test_order_is_that_of_the_integers(first: list[int], second: list[int]) -> None:
    one, two = (version(".".join(map(str, each))) for each in (first, second))
    assert (one < two, one <= two, one == two, one >= two, one > two) == (
        first < second,
        first <= second,
        first == second,
        first >= second,
        first > second,
    )


def test_text_is_kept_and_leading_zeros_do_not_count() -> None:
    assert str(version("580.65.06")) == "580.65.06"
    assert version("580.65.06") == version("580.65.6")
    assert version("7.5") < version("10.0")


def test_groups() -> None:
    """Check that a version belongs to another one by whole numbers: 12.4.1 to 12.4, 12.40 not."""
    assert version("12.4.1").within(version("12.4"))
    assert version("12.4.1").minor == version("12.4")
    assert not version("12.40").within(version("12.4"))
    assert version("12").minor == version("12")


@pytest.mark.parametrize("text", ["", "r580", "12.", "1..2", "12.4-1", "٣"])
def test_anything_else_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="not a version"):
        version(text)
