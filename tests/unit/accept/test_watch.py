"""A node before a load test: schedulers, which are programs of root and not those to which users give their
names, and programs on GPUs. Errors in the kernel's log meanwhile.
"""

from __future__ import annotations

import json
import os
import select
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gpuprov.accept.node import watch

ROOT, USER, SETUID = "0\t0\t0\t0", "1000\t1000\t1000\t1000", "1000\t0\t0\t0"


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder the program's /proc, with a folder `self`."""
    monkeypatch.setattr(watch, "PROC", str(tmp_path))
    (tmp_path / "self").mkdir()
    return tmp_path


def runs(proc: Path, name: str, uids: str = ROOT, file: str = "") -> None:
    """Add a process with a name, its users' numbers and the file that it runs to a /proc."""
    folder = proc / str(len(list(proc.iterdir())))
    folder.mkdir()
    (folder / "comm").write_text(f"{name}\n")
    (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uids}\nGid:\t0\t0\t0\t0\n")
    (folder / "exe").symlink_to(file or f"/usr/sbin/{name}")


@pytest.mark.parametrize("file", ["/usr/sbin/slurmd", "/opt/slurm/sbin/slurmd (deleted)"])
def test_a_scheduler_is_found(proc: Path, file: str) -> None:
    runs(proc, "slurmd", file=file)
    runs(proc, "kubelet")
    runs(proc, "kubelet")
    runs(proc, "bash")
    assert watch.schedulers() == ["Kubernetes", "Slurm"]


@pytest.mark.parametrize(
    ("uids", "file"), [(USER, ""), (SETUID, "/usr/bin/sudo"), (SETUID, ""), (ROOT, "/usr/bin/sudo")]
)
def test_a_name_that_a_user_chose_is_no_scheduler(proc: Path, uids: str, file: str) -> None:
    runs(proc, "slurmd", uids, file)
    assert watch.schedulers() == []


def test_a_process_that_has_ended_is_none(proc: Path) -> None:
    (proc / "7").mkdir()
    assert watch.schedulers() == []


def test_programs_that_nvml_does_not_list_are_not_none(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Mock()
    nvml.read.return_value = [{"index": index} for index in range(3)]
    nvml.processes.return_value = {0: [], 1: [[4711, 900]]}
    monkeypatch.setattr(watch, "Watch", lambda: nvml)
    assert watch.first_look()["programs"] == {"1": [[4711, 900]], "2": None}


@pytest.mark.parametrize(
    ("looks", "own", "found"),
    [
        ([[]], [], {}),
        ([[[4711, 900]], []], [], {}),  # a killed process, whose GPU the driver frees
        ([[[4711, 900]]], [], {"0": [[4711, 900]]}),
        ([[[12, 500]]], [12], {}),  # a process of the test that hangs in the driver
        ([[[12, 500], [4711, 900]]], [12], {"0": [[4711, 900]]}),
        ([None], [], {"0": None}),
    ],
)
def test_programs_after_the_load_are_those_of_others(
    looks: list[Any], own: list[int], found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [{} if rows is None else {0: rows} for rows in looks]
    nvml = Mock(read=lambda: [{"index": 0}])
    nvml.processes = lambda: seen.pop(0) if len(seen) > 1 else seen[0]
    monkeypatch.setattr(watch, "Watch", lambda: nvml)
    monkeypatch.setattr(watch, "FREED_S", 0.3)
    assert watch.programs_after(own) == {"programs": found}


def test_an_error_is_that_of_a_driver_and_no_other_one_pushes_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [f"NVRM: Xid (PCI:0000:c1:00): {code}, pid=1, text" for code in (79, 31)]
    said = [faults[0], "process '/tmp/Xid' launched '/tmp/NVRM: Xid (' with NULL argv", *faults]
    said += [f"NVRM: Xid (PCI:0000:c1:00): 31, pid={pid}, text" for pid in range(9)]
    said += ["NVRM: Xid (PCI:[4711]: segfault at 0 ip 55d2 sp 7fff error 4 in a[55d2+1000]"]
    rounds = iter([True, False])
    monkeypatch.setattr(select, "select", lambda *_: next(rounds))
    monkeypatch.setattr(watch, "records", lambda *_: [(7.5, text) for text in said])
    *_, result = watch.new_xids(3)
    assert result == {"lines": [{"at": 7.5, "text": text} for text in faults]}


def test_lost_messages_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = iter([True, True, False])
    fault = "NVRM: Xid (PCI:0000:c1:00): 79, pid=1, text"
    monkeypatch.setattr(select, "select", lambda *_: next(rounds))
    monkeypatch.setattr(watch, "records", lambda *_: [(0.0, None), (7.5, fault)])
    first, *others = (json.loads(json.dumps(each)) for each in watch.new_xids(3))
    lost = {"lost": "the kernel's log was overwritten before it was read"}
    assert (first, others) == (
        {"lines": []},
        [{"lines": [], **lost}, {"lines": [{"at": 7.5, "text": fault}], **lost}],
    )


def test_the_reader_of_the_log_runs_before_users_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(os, "sched_setscheduler", lambda *values: asked.append(values))
    monkeypatch.setattr(watch, "open_ring", lambda _: 99)
    monkeypatch.setattr(watch, "new_xids", lambda ring: asked.append(ring) or ())
    watch.follow(3)
    assert asked == [(0, os.SCHED_FIFO, os.sched_param(1)), 99]


def test_a_reader_that_may_not_run_first_reads_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    monkeypatch.setattr(os, "sched_setscheduler", Mock(side_effect=PermissionError))
    monkeypatch.setattr(watch, "open_ring", lambda _: 99)
    monkeypatch.setattr(watch, "new_xids", lambda _: [{"lines": []}])
    watch.follow(write)
    assert os.read(read, 64) == b'{"lines": []}\n'
    os.close(read)
    os.close(write)
