"""Changes of a lock in short: what follows from a version is counted, not listed."""

from __future__ import annotations

import pytest

from gpuprov.locking.changes import _word, brief, changes
from gpuprov.model.lock import read_lock
from tests import RECORDED_LOCK

VERSION = "train.components.driver.version  535.261.03 → 535.309.01"
CLOCKS = "train.settings.clocks.value.graphics  1395 → 1410"
DETAILS = [
    "train.components.driver.packages.nvidia-driver  535.261.03-1 → 535.309.01-1",
    "train.components.driver.closure.libcuda1  535.261.03-1 → 535.309.01-1",
    "train.components.driver.reason  a → b",
]


def test_details_are_counted() -> None:
    """Check that changes of packages and reasons are counted in one line."""
    assert brief([VERSION, *DETAILS, CLOCKS]) == [
        VERSION,
        CLOCKS,
        "and 3 lines of packages and reasons: -v shows them",
    ]


def test_details_alone_are_listed() -> None:
    assert brief(DETAILS) == DETAILS
    assert brief([]) == []


def test_a_first_lock_has_its_components() -> None:
    lines = changes(None, read_lock(RECORDED_LOCK))
    assert brief(lines) == lines


def test_the_size_of_packages_is_no_change() -> None:
    lock = read_lock(RECORDED_LOCK)
    [(name, group)] = lock.groups.items()
    driver = group.components.driver.model_copy(update={"download": 400_000_000})
    components = group.components.model_copy(update={"driver": driver})
    sized = lock.model_copy(update={"groups": {name: group.model_copy(update={"components": components})}})
    assert changes(lock, sized) == []


@pytest.mark.parametrize(
    ("value", "word"), [(None, "nothing"), ([], "none"), ("", "none"), (["a", "b"], "a, b"), (0, "0")]
)
def test_no_value_is_shown_as_nothing_at_all(value: object, word: str) -> None:
    assert _word(value) == word


def test_a_long_path_does_not_widen_other_lines() -> None:
    lock = read_lock(RECORDED_LOCK)
    [(name, group)] = lock.groups.items()
    long = "n" * 253
    hosts = group.model_copy(update={"hosts": {**group.hosts, long: "192.0.2.1", "short": "192.0.2.2"}})
    lines = changes(lock, lock.model_copy(update={"groups": {name: hosts}}))
    assert sorted(map(len, lines))[0] < 150 < 253 < sorted(map(len, lines))[1]
