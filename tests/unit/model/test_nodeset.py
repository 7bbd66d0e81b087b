"""Names folded into sets: no name makes ClusterShell read a file."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprov.model import nodeset
from gpuprov.model.nodeset import expand, fold


@pytest.mark.parametrize("name", ["a[", "a[1-", "@group", "@*", "a[0-99999999]b[", ""])
def test_a_name_that_is_none_can_be_shown(name: str) -> None:
    assert isinstance(fold([name, "gpu01"]), str)


def test_names_are_one_range() -> None:
    assert fold(["gpu01", "gpu02"]) == "gpu[01-02]"


@pytest.mark.parametrize(
    ("allowed", "refused"),
    [
        ("gpu[1-12]", "gpu[1-13]"),
        ("gpu[01-12]", "gpu[0-12]"),
        ("gpu[1-24/2]", "gpu[1-25/2]"),
        ("rack[1-3]n[1-4]", "rack[1-3]n[1-4],login"),
    ],
)
def test_a_set_of_too_many_names_is_refused(
    monkeypatch: pytest.MonkeyPatch, allowed: str, refused: str
) -> None:
    monkeypatch.setattr(nodeset, "LARGEST", 12)
    assert len(expand(allowed)) == 12
    with pytest.raises(ValueError, match="at most 12 host names in one set, not 13"):
        expand(refused)


def sparse(count: int, numbers: int) -> list[str]:
    """Return names with three numbers that hardly fold."""
    choice = random.Random(1)  # noqa: S311
    return [
        f"r{choice.randrange(numbers)}c{choice.randrange(numbers)}x{choice.randrange(numbers)}"
        for _ in range(count)
    ]


@pytest.mark.thorough
def test_many_names_with_several_numbers_take_little_time() -> None:
    names, begun = sparse(4000, 900), time.process_time()
    assert set(expand(fold(names))) == set(names)
    assert set(expand(",".join(names))) == set(names)
    assert time.process_time() - begun < 10


def test_so_do_names_of_many_numbers() -> None:
    names, begun = ["1a" * 120 + str(number) for number in range(3000)], time.process_time()
    assert fold(names) == f"{'1a' * 120}[0-2999]"
    assert time.process_time() - begun < 5


def test_a_long_list_takes_time_of_its_length() -> None:
    names, begun = [f"gpu{number}" for number in range(8000)], time.process_time()
    assert expand(",".join(names)) == names
    with pytest.raises(ValueError, match="at most 100000 host names in one set, not 100001"):
        expand("a" + "[1-9]" * 8000)
    assert time.process_time() - begun < 5


def test_many_names_that_fold_are_one_set() -> None:
    names = [
        f"x{x}c{c}s{s}b{b}n0" for x in range(1000, 1008) for c in range(8) for s in range(8) for b in range(2)
    ]
    assert fold(reversed(names)) == "x[1000-1007]c[0-7]s[0-7]b[0-1]n0"


def test_many_ranges_with_an_operator_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 128 ranges of names with several numbers, with !, & or"):
        expand(",".join(sparse(200, 900)) + "!r1c1x1")


numbers = st.sampled_from(["0", "1", "2", "9", "10", "01", "02"])
some_names = st.lists(
    st.one_of(
        st.builds("n{}".format, numbers),
        st.builds("r{}c{}".format, numbers, numbers),
        st.sampled_from(["a", "7", "1.2"]),
    ),
    min_size=1,
)


@given(some_names)
def test_names_are_the_same_without_clustershell(names: list[str]) -> None:
    ranges = nodeset._ranges(names)
    spelled = ",".join(map(nodeset._spelled, ranges))
    assert set(expand(spelled)) == set(names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodeset, "SEVERAL", 0)
        assert set(expand(fold(names))) == set(names)
        assert len(expand(",".join(names))) == len(set(names))


def test_a_name_of_thousands_of_digits_is_shown_and_not_expanded() -> None:
    """Check that no name ends in Python's limit of a number's digits."""
    long = "n" + "9" * 5000
    assert fold([long, "gpu01"]) == f"{long},gpu01"
    with pytest.raises(ValueError, match="host names of at most 253 characters"):
        expand(long)
