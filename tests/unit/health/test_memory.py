"""Memory between runs: confirmation, hold, pauses, and what readers may conclude."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from gpuprov.doctor.fault import Class
from gpuprov.health.memory import Memory, Sight
from gpuprov.health.verdict import TEXT, Circumstances, conclude

INTERVAL, HOLD = 60.0, 600.0


def sight(rule: str = "driver.smi", health: Class = "isolate") -> Sight:
    """Return a sight of one fault."""
    return Sight(rule, health, f"{rule} is seen")


class Node:
    """A memory with a simulated time since boot."""

    def __init__(self) -> None:
        self.memory, self.now = Memory(), 1000.0

    def run(self, *seen: Sight, paused: bool = False, unknown: Iterable[str] = ()) -> list[str]:
        """Do one run; return the rules that count after it."""
        self.now += INTERVAL
        self.memory.take(
            seen, now=self.now, interval=INTERVAL, hold=HOLD, paused=paused, unknown=list(unknown)
        )
        return [fault.rule for fault in self.memory.counting()]


def test_a_fault_counts_from_its_second_sight() -> None:
    node = Node()
    assert node.run(sight()) == []
    assert [fault.rule for fault in node.memory.suspected()] == ["driver.smi"]
    assert node.run(sight()) == ["driver.smi"]


def test_one_sight_alone_is_forgotten() -> None:
    node = Node()
    node.run(sight())
    assert [node.run() for _ in range(3)] == [[]] * 3
    assert node.memory.suspected() == []


def test_two_sights_far_apart_do_not_count() -> None:
    node = Node()
    node.run(sight())
    for _ in range(4):
        node.run()
    assert node.run(sight()) == []


def test_a_run_that_takes_longer_than_the_interval_confirms_a_fault() -> None:
    memory = Memory()
    for now in (1000.0, 1035.0):
        memory.take([sight()], now=now, interval=10.0, hold=HOLD)
    assert [fault.rule for fault in memory.counting()] == ["driver.smi"]


def test_runs_at_the_ends_of_jobs_do_not_confirm_a_fault_within_seconds() -> None:
    memory = Memory()
    for now in (1000.0, 1002.0, 1004.0):
        memory.take([sight()], now=now, interval=INTERVAL, hold=HOLD)
    assert memory.counting() == []
    memory.take([sight()], now=1060.0, interval=INTERVAL, hold=HOLD)
    assert [fault.rule for fault in memory.counting()] == ["driver.smi"]


def test_a_fault_of_every_second_run_counts_and_stays() -> None:
    node = Node()
    counted = [bool(node.run(*([sight()] if number % 2 else []))) for number in range(40)]
    assert counted == [False] * 3 + [True] * 37


def test_a_fault_is_gone_after_the_hold_and_not_before() -> None:
    node = Node()
    node.run(sight())
    node.run(sight())
    last = node.now
    while node.run():
        pass
    assert node.now - last == HOLD


def test_after_a_gap_without_runs_one_run_does_not_end_a_fault() -> None:
    node = Node()
    node.run(sight())
    node.run(sight())
    node.now += 10 * HOLD
    assert node.run() == ["driver.smi"]
    assert node.run() == []


def test_a_rule_that_cannot_judge_ends_no_fault() -> None:
    node = Node()
    node.run(sight())
    node.run(sight())
    for _ in range(30):
        assert node.run(unknown=["driver.smi"]) == ["driver.smi"]


def test_no_fault_is_added_in_a_pause() -> None:
    node = Node()
    for _ in range(5):
        assert node.run(sight(), paused=True) == []
        assert [fault.rule for fault in node.memory.suspected()] == ["driver.smi"]


def test_after_a_pause_a_fault_has_to_be_seen_twice_again() -> None:
    node = Node()
    node.run(sight(), paused=True)
    assert node.run(sight()) == []
    assert node.run(sight()) == ["driver.smi"]


def test_a_fault_that_counts_stays_in_a_pause() -> None:
    node = Node()
    node.run(sight())
    node.run(sight())
    assert node.run(sight(), paused=True) == ["driver.smi"]
    assert node.run(paused=True) == ["driver.smi"]


def test_causes_come_first_also_before_a_worse_class() -> None:
    node = Node()
    seen = (
        Sight("errors.xid", "reset", "Xid 119", place=0),
        Sight("driver.smi", "isolate", "does not answer", place=1),
        Sight("speed.hot", "watch", "hot", place=2),
    )
    node.run(*seen)
    assert node.run(*seen) == ["errors.xid", "driver.smi", "speed.hot"]


def test_gone_since_is_the_last_sight_of_a_fault_that_ends_jobs() -> None:
    node = Node()
    node.run()
    assert node.memory.gone_since == node.now
    node.run(sight("speed.hot", "watch"))
    node.run(sight("speed.hot", "watch"))
    assert node.memory.gone_since == node.now - 2 * INTERVAL
    node.run(sight(), sight())
    node.run(sight())
    last = node.now
    node.run()
    assert node.memory.gone_since == last


def test_it_survives_as_json() -> None:
    node = Node()
    node.run(sight())
    node.run(sight())
    again = Memory.from_dict(json.loads(json.dumps(node.memory.as_dict())))
    assert again == node.memory


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"faults": []},
        {"faults": {"a b": {"rule": "a"}}},
        {"faults": {}, "other": 1},
    ],
)
def test_a_broken_memory_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        Memory.from_dict(broken)


def test_the_memory_is_bounded() -> None:
    node = Node()
    node.run(*(sight(f"rule.n{number}") for number in range(1000)))
    assert len(node.memory.faults) == 200


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ([], "Xid 119"),
        (["speed.hot"], "Xid 119; also speed.hot"),
        ([f"speed.{n}" for n in "abcde"], "Xid 119; also speed.a, speed.b, speed.c and 2 more"),
    ],
)
def test_the_text_names_the_other_rules(others: list[str], text: str) -> None:
    node = Node()
    seen = [
        Sight("errors.xid", "reset", "Xid 119"),
        *(Sight(each, "watch", "hot", place=1) for each in others),
    ]
    seen.append(Sight("speed.hint", "none", "information", place=2))
    for _ in range(2):
        node.run(*seen)
    around = Circumstances(now=node.now, at="", boot_id="", interval=INTERVAL, hold=HOLD)
    assert conclude(node.memory, around)["text"] == text


def test_a_long_text_leaves_room_for_the_other_rules() -> None:
    node = Node()
    seen = Sight("errors.xid", "reset", "x" * 300), Sight("speed.hot", "watch", "hot", place=1)
    for _ in range(2):
        node.run(*seen)
    around = Circumstances(now=node.now, at="", boot_id="", interval=INTERVAL, hold=HOLD)
    text = conclude(node.memory, around)["text"]
    assert (len(text), text[-17:]) == (TEXT, "x; also speed.hot")
