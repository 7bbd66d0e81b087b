"""A node's hardware as read from its facts."""

from __future__ import annotations

import json

import pytest

from gpuprov.drift.hardware import Port, cores, ports
from gpuprov.drift.judge import judge
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from tests import H200


@pytest.mark.parametrize(("threads", "expected"), [(2, 32), (1, 64), (None, 64)])
def test_cores_are_processors_by_their_threads(threads: int | None, expected: int) -> None:
    """Count every processor as a core if the node does not report threads, as arm64 does not."""
    answer = json.loads((H200 / "facts.json").read_text())
    answer["collectors"]["cpu"] |= {"logical": 64, "threads_per_core": threads}
    assert cores(Facts.from_answer(answer)) == expected


def test_a_port_without_a_link_has_no_speed() -> None:
    answer = json.loads((H200 / "facts.json").read_text())
    answer["collectors"]["nics"] = [
        {"name": f"eno{number}", "kind": "physical", "state": state, "speed": speed}
        for number, (state, speed) in enumerate([("up", 25000), ("up", -1), ("down", 25000)])
    ]
    found = ports(Facts.from_answer(answer))
    assert found == [Port("ethernet", 25), Port("ethernet", None), Port("ethernet", 0)]


def test_the_size_of_drives_is_reported_with_two_digits() -> None:
    answer = json.loads((H200 / "facts.json").read_text())
    [disk] = answer["collectors"]["disks"]
    answer["collectors"]["disks"] = [disk | {"name": "nvme0n1", "size": 3_848_755_982_336}]
    expected = Expectation("hardware.nvme", {"total_tb": 7.68}, "hardware")
    [difference] = judge("node", Facts.from_answer(answer), [expected]).drift
    assert difference.actual == {"total_tb": 3.85}
