"""A node's hardware as read from its facts."""

from __future__ import annotations

import json

import pytest

from gpuprov.drift.hardware import cores
from gpuprov.probe.facts import Facts
from tests import H200


@pytest.mark.parametrize(("threads", "expected"), [(2, 32), (1, 64), (None, 64)])
def test_cores_are_processors_by_their_threads(threads: int | None, expected: int) -> None:
    """Count every processor as a core if the node does not report threads, as arm64 does not."""
    answer = json.loads((H200 / "facts.json").read_text())
    answer["collectors"]["cpu"] |= {"logical": 64, "threads_per_core": threads}
    assert cores(Facts.from_answer(answer)) == expected
