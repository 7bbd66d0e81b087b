"""Output during a run: nodes folded, differences only on request, no minutes without output."""

from __future__ import annotations

from typing import Any

import pytest

from gpuprov.report import progress as module
from gpuprov.report.progress import DIFF_LINES, LINE, LINES, WAITING, Progress

DIFF = "--- /etc/nccl.conf\n+++ /etc/nccl.conf\n+NCCL_IB_DISABLE=1\n"


def start(task: str) -> dict[str, Any]:
    """Return the event at the start of a task."""
    return {"event": "start", "play": "site", "role": "nccl", "task": task}


def result(host: str, status: str = "changed", **more: Any) -> dict[str, Any]:
    """Return the event of a task's result on a host."""
    event = {"event": "task", "host": host, "role": "nccl", "task": "Write the configuration"}
    return event | {"status": status, "seconds": 0.4, "msg": ""} | more


def lines(*events: dict[str, Any], diffs: bool = False) -> list[str]:
    """Return the lines that progress reports for events, and for the end after them; `diffs` shows changes of
    files.
    """
    said: list[str] = []
    progress = Progress(said.append, diffs=diffs)
    for event in events:
        progress.event(event)
    progress.event({"event": "stats", "hosts": {}})
    return said


def test_the_same_change_of_many_nodes_is_one_line() -> None:
    changed = [result(f"gpu{number:03}", diff=DIFF) for number in range(1, 201)]
    assert lines(start("Write the configuration"), *changed) == [
        "nccl …",
        "    gpu[001-200]  changed  Write the configuration",
    ]


def test_the_same_difference_is_shown_once_and_only_when_asked_for() -> None:
    changed = [result("a1", diff=DIFF), result("a2", diff=DIFF), result("b1", diff="+other\n")]
    assert lines(start("Write the configuration"), *changed, diffs=True) == [
        "nccl …",
        "    a[1-2]  changed  Write the configuration",
        *(f"        {line}" for line in DIFF.splitlines()),
        "    b1  changed  Write the configuration",
        "        +other",
    ]


def test_a_failure_says_why_and_a_slow_task_how_long() -> None:
    failed = result("a1", "failed", msg="no space left", seconds=0.2)
    slow = [result("a2", seconds=61.0), result("a3", seconds=75.2)]
    assert lines(start("x"), failed, *slow)[1:] == [
        "    a1  failed  Write the configuration: no space left",
        "    a[2-3]  changed  Write the configuration (75 s)",
    ]


def test_what_a_failed_program_said_stands_below() -> None:
    failed = result("a1", "failed", msg="E: no room\nW: old")
    assert lines(start("x"), failed)[1:] == [
        "    a1  failed  Write the configuration: E: no room",
        "        W: old",
    ]


def test_a_long_message_is_shown_in_part_and_its_log_is_named() -> None:
    failed = result("a1", "failed", msg="E: no room\n" * 262_144)
    said = lines(start("x"), failed)[1:]
    assert said == [
        "    a1  failed  Write the configuration: E: no room",
        *["        E: no room"] * (LINES - 1),
        f"        … {262_144 - LINES} more lines: in *-events.jsonl among the logs of this run",
    ]
    whole = result("a1", "failed", msg="E: no room\n" * LINES)
    assert len(lines(start("x"), whole)[1:]) == LINES


def test_a_long_line_is_shown_in_part() -> None:
    said = lines(start("x"), result("a1", "failed", msg="x" * 4_000_000))[1:]
    assert [len(line) for line in said] == [len("    a1  failed  Write the configuration: ") + LINE + 1]


def test_results_do_not_wait_for_the_next_task_in_any_number() -> None:
    """Report them when they take much memory: a worker can send results of one task without an end."""
    said: list[str] = []
    progress = Progress(said.append)
    progress.event(start("x"))
    for number in range(100):
        progress.event(result("a1", "failed", msg=f"{number} " + "x" * 400_000))
        assert sum(len(each) for _, each, _ in progress._results) <= WAITING
    assert len(said) > 50


def test_a_long_difference_is_shown_in_part() -> None:
    said = lines(start("x"), result("a1", diff="+x\n" * 262_144), diffs=True)[2:]
    assert len(said) == DIFF_LINES + 1
    assert said[-1].startswith(f"        … {262_144 - DIFF_LINES} more lines")


def test_a_reboot_belongs_to_no_role() -> None:
    progress = Progress(lambda line: None)
    progress.event({"event": "start", "play": "reboot", "role": "", "task": "Reboot"})
    assert progress.at() == "Reboot, 0:00"


def test_a_long_task_is_named_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    said: list[str] = []
    progress = Progress(said.append)
    progress.event(start("Install NCCL"))
    progress.event(result("a1", "ok"))
    for _ in range(130):
        now[0] += 1
        progress.still()
    assert said == [
        "nccl …",
        "    still at nccl: Install NCCL, 1:00, done on 1 node",
        "    still at nccl: Install NCCL, 2:00, done on 1 node",
    ]


def test_nothing_is_said_between_tasks() -> None:
    said: list[str] = []
    progress = Progress(said.append)
    progress.event({"event": "stats", "hosts": {}})
    assert progress.at() == ""


def test_plays_that_run_side_by_side_are_told_as_one() -> None:
    """Print the same role of two workers once; print it again if a worker returns to it."""
    one, other = ({"stream": number} for number in (1, 2))
    said = lines(
        start("x") | one, start("x") | other, result("a1") | one, result("a2") | other, start("y") | one
    )
    assert said == ["nccl …", "    a[1-2]  changed  Write the configuration"]
    again = {"event": "start", "play": "site", "role": "docker", "task": "z"}
    assert lines(start("x") | one, again | one, start("x") | other, start("x") | one) == [
        "nccl …",
        "docker …",
        "nccl …",
    ]


def test_a_task_of_no_role_is_not_said_to_be_the_last_roles() -> None:
    progress = Progress(lambda _line: None)
    progress.event(start("Write the configuration"))
    assert progress.at().startswith("nccl: Write the configuration, 0:0")
    progress.event({"event": "start", "play": "reboot", "role": None, "task": "Reboot"})
    assert progress.at().startswith("Reboot, 0:0")


STEPS = {
    "preflight": ["a1", "a2"],
    "nccl": ["a1", "a2"],
    "docker": ["a1"],
    "reboot": ["a1"],
    "verify": ["a1", "a2"],
}


def test_known_steps_are_counted_with_their_nodes_and_the_total_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    said: list[str] = []
    progress = Progress(said.append, steps=STEPS)
    now[0] += 60
    progress.event(start("Write the configuration"))
    now[0] += 5
    progress.event(result("a1", "ok"))
    assert progress.at() == (
        "2 of 5 after 1:05  nccl on a[1-2]: Write the configuration, 0:05, done on 1 node"
    )
    assert said == ["nccl … (2 of 5)"]


def test_a_role_that_is_a_part_of_others_is_no_step() -> None:
    said: list[str] = []
    progress = Progress(said.append, steps=STEPS)
    for role in ("nccl", "packages", "nccl", "packages", "docker", "nccl"):
        progress.event(start("x") | {"role": role})
    assert said == ["nccl … (2 of 5)", "docker … (3 of 5)"]
    assert "3 of 5 after 0:0" in progress.at()
    assert "  nccl on a[1-2]: x" in progress.at()


def test_a_reboot_and_the_verification_are_steps() -> None:
    progress = Progress(lambda _line: None, steps=STEPS)
    progress.event({"event": "start", "play": "Reboot in batches", "role": None, "task": "Reboot"})
    assert progress.at().startswith("4 of 5 after 0:0")
    assert "  Reboot on a1, 0:0" in progress.at()
    with progress.alive(module.VERIFY):
        assert progress.at().startswith("5 of 5 after 0:0")
        assert "  verify on a[1-2], 0:0" in progress.at()
