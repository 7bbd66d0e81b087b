"""Expected duration of a plan: from the events of earlier applies, or rough and marked as such."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply.plan import NodePlan
from gpuprov.drift.judge import Difference
from gpuprov.history import pace as module
from gpuprov.history.pace import Pace, pace, seconds_by_role
from gpuprov.model.lock import Lock, read_lock
from gpuprov.report.text import plan_sentence
from gpuprov.report.upgrade import upgrade_sentence
from gpuprov.upgrade.batches import Batch
from tests import RECORDED_LOCK

EVENTS: list[dict[str, Any]] = [
    {"event": "start", "role": "preflight", "task": "Look"},
    {"event": "task", "role": "preflight", "host": "a", "seconds": 2.0},
    {"event": "task", "role": "preflight", "host": "b", "seconds": 3.0},
    {"event": "start", "role": "nvidia_driver", "task": "Choose"},
    {"event": "task", "role": "nvidia_driver", "host": "a", "seconds": 60},
    {"event": "start", "role": "packages", "task": "Install"},
    {"event": "task", "role": "packages", "host": "a", "seconds": 100},
    {"event": "stats", "hosts": {}},
]
REBOOT: list[dict[str, Any]] = [
    {"event": "start", "role": None, "task": "Reboot"},
    {"event": "task", "role": None, "host": "a", "seconds": 90},
    {"event": "stats", "hosts": {}},
]


@pytest.fixture
def lock() -> Lock:
    """Return the recorded lock with a driver of 400 MB."""
    lock = read_lock(RECORDED_LOCK)
    [(name, group)] = lock.groups.items()
    driver = group.components.driver.model_copy(update={"download": 400_000_000})
    components = group.components.model_copy(update={"driver": driver})
    return lock.model_copy(update={"groups": {name: group.model_copy(update={"components": components})}})


def plan(lock: Lock, *, there: int = 0) -> NodePlan:
    """Plan of the driver on a node that has some of its packages already."""
    [(name, group)] = lock.hosts().items()
    wanted = group.components.driver.closure
    actual = {each: version if n < there else None for n, (each, version) in enumerate(wanted.items())}
    because = Difference("driver.packages", wanted, actual, "error", "nvidia_driver", reboot=True)
    return NodePlan(name, ("preflight", "nvidia_driver"), reboot=True, because=(because,), beyond=())


def earlier(folder: Path, *, events: list[dict[str, Any]] | None = None) -> Path:
    """Write the events of an earlier apply and its reboot into a new folder, and return it."""
    folder.mkdir(parents=True)
    (folder / "site-events.jsonl").write_text("\n".join(map(json.dumps, events or EVENTS)))
    (folder / "reboot-events.jsonl").write_text("\n".join(map(json.dumps, REBOOT)))
    return folder


def test_a_task_counts_with_its_slowest_node_and_helpers_with_their_role(tmp_path: Path) -> None:
    assert seconds_by_role([earlier(tmp_path / "run")]) == {
        "preflight": [3.0],
        "nvidia_driver": [160.0],
        "reboot": [90.0],
    }


def test_a_first_apply_is_rough(lock: Lock) -> None:
    found = pace(lock, [plan(lock)])
    assert not found.known
    assert found.download == 400_000_000
    assert found.seconds > module.REBOOT_S + module.COMPILE_S


def test_later_ones_take_what_earlier_ones_took(own_state: Path, lock: Lock) -> None:
    runs = own_state / "gpuprov/runs"
    earlier(runs / "20260131-142501-apply-9f3a")
    quick = [{**each, **({"seconds": 1.0} if "seconds" in each else {})} for each in EVENTS]
    earlier(runs / "20260131-152501-apply-9f3b", events=quick)
    found = pace(lock, [plan(lock)])
    assert found == Pace(module.VERIFY_S + 2.0 + 160.0 + 90.0, known=True, download=400_000_000)


def test_reboots_take_their_batches(lock: Lock) -> None:
    [(name, group)] = lock.groups.items()
    [host] = group.hosts
    two = group.model_copy(update={"hosts": {host: "a", "other": "b"}})
    both = lock.model_copy(update={"groups": {name: two}})
    plans = [NodePlan(each, (), reboot=True, because=(), beyond=()) for each in two.hosts]
    assert pace(both, plans).seconds == module.VERIFY_S + 2 * module.REBOOT_S


def test_packages_that_are_there_are_not_downloaded(lock: Lock) -> None:
    [group] = lock.groups.values()
    count = len(group.components.driver.closure)
    half = pace(lock, [plan(lock, there=count // 2)]).download
    assert half == round(400_000_000 * (count - count // 2) / count)


def test_an_older_lock_states_no_size() -> None:
    old = read_lock(RECORDED_LOCK)
    assert pace(old, [plan(old)]).download is None


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"event": "task", "seconds": "x"}', '{"event": "task", "seconds": -5}', '"' * 5]
)
def test_lines_that_are_no_events_are_left_out(line: str, tmp_path: Path) -> None:
    folder = earlier(tmp_path / "run")
    file = folder / "site-events.jsonl"
    file.write_text(f"{line}\n{file.read_text()}\n{line}\n")
    assert seconds_by_role([folder])["preflight"] == [3.0]


def test_a_file_that_is_too_large_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVENTS_BYTES", 100)
    assert seconds_by_role([earlier(tmp_path / "run")]) == {}


def test_a_run_with_more_than_the_rest_of_all_runs_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read the newest runs first: a worker sends the events of its attempts, many files in one run."""
    runs = [earlier(tmp_path / name) for name in "abc"]
    size = sum(path.stat().st_size for path in runs[0].iterdir())
    for number in range(5):
        earlier(runs[1] / f"attempt-{number}")
    monkeypatch.setattr(module, "ALL_BYTES", 2 * size)
    assert seconds_by_role(runs)["preflight"] == [3.0, 3.0]


@pytest.mark.parametrize(
    ("expected", "end"),
    [
        (Pace(300, known=True, download=None), "22 packages, 1 reboot, about 5 minutes"),
        (Pace(20, known=True, download=400_000_000), "22 packages (400 MB), 1 reboot, about 1 minute"),
        (
            Pace(600, known=False, download=2_400_000_000),
            "22 packages (2.4 GB), 1 reboot, about 10 minutes (rough: no earlier apply is known)",
        ),
    ],
)
def test_the_plan_ends_with_one_sentence(expected: Pace, end: str, lock: Lock) -> None:
    [said] = plan_sentence([plan(lock)], expected)
    assert said == f"in total: 1 of 1 node, {end}"


def test_batches_of_an_upgrade_follow_each_other(lock: Lock) -> None:
    [(name, group)] = lock.groups.items()
    [host] = group.hosts
    two = group.model_copy(update={"hosts": {host: "a", "other": "b"}})
    both = lock.model_copy(update={"groups": {name: two}})
    plans = [replace(plan(lock), name=each) for each in two.hosts]
    together = upgrade_sentence(both, plans, [Batch("canary", tuple(two.hosts), 0)])
    apart = upgrade_sentence(both, plans, [Batch("canary", (host,), 0), Batch("batch 1", ("other",), 0)])
    assert list(apart) != list(together)
    alone = pace(both, plans[:1]).seconds
    [said] = upgrade_sentence(both, plans, [Batch("canary", (host,), 0), Batch("batch 1", ("other",), 0)])
    assert f"44 packages (800 MB), 2 reboots, about {round(2 * alone / 60)} minutes" in said
