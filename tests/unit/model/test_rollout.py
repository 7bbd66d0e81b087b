"""Rules of a rollout: sizes of batches that cannot move a node, and windows that never open, are refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gpuprov.model.rollout import Hook, Rollout, Window


@pytest.mark.parametrize("serial", [0, "0%", [1, 0], ["10%", "0%"]])
def test_a_batch_without_nodes_is_refused(serial: Any) -> None:
    with pytest.raises(ValidationError, match="batches of at least one node"):
        Rollout(serial=serial)


@pytest.mark.parametrize("serial", [1, "1%", ["10%", 2]])
def test_a_batch_with_a_share_of_the_nodes_is_valid(serial: Any) -> None:
    """Accept also a share that is less than one node: a batch has at least one node."""
    assert Rollout(serial=serial).serial in (serial, [serial])


@pytest.mark.parametrize("clock", ["00:00", "22:30"])
def test_a_window_that_ends_when_it_starts_is_refused(clock: str) -> None:
    with pytest.raises(ValidationError, match="another time than start"):
        Window(start=clock, end=clock)


def test_a_wait_ends() -> None:
    """Check that no number of seconds is too large to wait for, also as text, which is read as a number."""
    for seconds in (604_801, "9" * 400):
        with pytest.raises(ValidationError, match="less than or equal to 604800"):
            Hook(run="true", timeout_s=seconds)
        with pytest.raises(ValidationError, match="less than or equal to 604800"):
            Rollout(settle_s=seconds)
