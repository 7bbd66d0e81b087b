"""Programs that use a GPU, as the probe finds them: those that the probe runs itself are not among them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprov.probe.node import host, load, people
from gpuprov.probe.node.base import COLLECTORS, Failed

PARAMETERS = {"environment": "NCCL_"}


def test_what_the_probe_runs_itself_does_not_use_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out children, as nvidia-smi that another collector runs, which has all GPUs open."""
    with subprocess.Popen(["sleep", "60"]) as child:
        running = {str(os.getppid()): ["nvidia0"], str(child.pid): ["nvidia0"]}
        monkeypatch.setattr(host, "users_of", lambda pattern, **_: running)
        found = [row["pid"] for row in host.programs(PARAMETERS)["holders"]]
        child.kill()
    assert found == [os.getppid()]


def test_what_the_probe_runs_itself_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out sleeping children: nvidia-smi reads many GPUs for longer than half a second."""
    texts = {
        "/proc/11/stat": f"11 (nvidia-smi) D {os.getpid()} 1 1",
        "/proc/12/stat": "12 (a (strange) D name) D 1 1 1",
        "/proc/13/stat": "13 (sleep) S 1 1 1",
        "/proc/14/stat": "",
    }
    monkeypatch.setattr(host.glob, "glob", lambda pattern: list(texts))
    monkeypatch.setattr(host, "read_or_none", lambda path, limit=0: texts.get(path))
    monkeypatch.setattr(host, "text_in", lambda path: "io_schedule")
    assert host._stuck() == [["a (strange) D name", "12", "io_schedule"]]


@pytest.fixture
def proc(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Files that collectors read in place of this machine's: path -> text."""
    texts: dict[str, str] = {}
    for module in (host, load, people):
        monkeypatch.setattr(module, "read_or_none", lambda path, limit=1 << 22: texts.get(path, "")[:limit])
    monkeypatch.setattr(host, "text_in", lambda path: texts.get(path, ""))
    monkeypatch.setattr(host, "_runs", lambda *names: False)
    return texts


def variables(pid: str) -> dict[str, str]:
    """Return NCCL's variables of a process, which its user does not keep from being read."""
    found = people.variables_of(pid, re.compile("NCCL_"), people.Patience())
    assert found is not None
    return found


def with_users(proc: dict[str, str], **users: range) -> None:
    """Add the processes of users, `u1000`; all of them use a GPU, and sleep in the kernel."""
    for user, pids in users.items():
        for pid in pids:
            proc[f"/proc/{pid}/status"] = f"Uid:\t{user[1:]}\t0\n"
            proc[f"/proc/{pid}/stat"] = f"{pid} (python) D 1 1"


def seen(proc: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Return the pids that each collector lists, with those of the load sample last."""
    pids = [path.split("/")[2] for path in proc if path.endswith("/stat")]
    monkeypatch.setattr(host.glob, "glob", lambda _: [f"/proc/{pid}/stat" for pid in pids])
    for module in (host, load):
        monkeypatch.setattr(module, "users_of", lambda pattern, **_: {pid: ["nvidia0"] for pid in pids})
    monkeypatch.setattr(load, "names_in", lambda path: pids if path == "/proc" else [])
    found = host.programs(PARAMETERS)
    gpus: Any = SimpleNamespace(processes=dict)
    return [
        [row["pid"] for row in found["holders"]],
        [int(row[1]) for row in found["stuck"]],
        [int(pid) for pid in load._programs(gpus)],
    ]


def test_many_programs_and_variables_of_a_user_hide_no_other_program(
    proc: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read as many as there are places, each user's in turn, and of each a bounded part of its variables."""
    with_users(proc, u1000=range(1, 900), u1001=range(900, 1500))
    proc["/proc/1/environ"] = "".join(f"NCCL_{number}=1\0" for number in range(16000))
    for pids in seen(proc, monkeypatch):
        assert pids == [pid for n in range(200) for pid in (1 + n, 900 + n)][: len(pids)]
        assert len(pids) in (host.PROCESSES_AT_MOST, load.PROGRAMS_AT_MOST)
    assert len(variables("1")) == people.VARIABLES_AT_MOST


def test_the_numbers_of_a_users_containers_have_one_share(
    proc: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a program under each number of a range that newuidmap gives to one user."""
    with_users(proc, **{f"u{100000 + n}": range(n, n + 1) for n in range(1, 900)}, u1001=range(990, 992))
    proc[people.SUBORDINATE] = "root:0:4294967295\n1000:100000:65536\nann:165536:65536\nbroken:x:1\n"
    for pids in seen(proc, monkeypatch):
        assert pids[:4] == [1, 990, 2, 991]


def test_large_variables_and_many_threads_of_a_user_hide_no_other_program(
    proc: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Share the size, too: what is sent for all of a user's programs is not read if it is too large."""
    with_users(proc, u1000=range(1, 400), u1001=range(900, 920))
    for pid in range(1, 400):
        proc[f"/proc/{pid}/environ"] = "".join(f"NCCL_{n}={'token=x;' * 50}\0" for n in range(150))
        proc[f"/proc/{pid}/environ"] += f"OMP_NUM_THREADS={'9' * 60000}\0WORLD_SIZE={'�' * 60000}\0"
    holders, stuck, sampled = seen(proc, monkeypatch)
    for pids in (holders, stuck, sampled):
        assert set(range(900, 920)) <= set(pids)
    assert len(json.dumps(host.programs(PARAMETERS))) < 2 << 20
    assert {len(value) for value in variables("1").values()} <= {*range(301)}
    monkeypatch.setattr(load, "_threads", lambda folder: {str(n): ["x" * 15, n] for n in range(256)})
    rows = load._programs(SimpleNamespace(processes=dict))  # type: ignore[arg-type]
    assert {str(pid) for pid in range(900, 906)} <= rows.keys()
    assert len(json.dumps(rows)) < 300_000


def test_a_user_who_keeps_the_kernel_from_answering_hides_no_other_program(
    proc: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wait as the kernel does while a process keeps its memory locked: once for each user."""
    with_users(proc, u1000=range(1, 31), u1001=range(31, 61))
    ended, waited = threading.Event(), []

    def wait(path: str, limit: int = 1 << 22) -> str:
        """Answer after the test about the variables and the reading of a user's programs."""
        if re.fullmatch(r"/proc/(?:[1-9]|[12]\d|30)/(?:environ|io)", path):
            waited.append(path)
            ended.wait(20)
        return "NCCL_ALGO=Ring\0WORLD_SIZE=8\0" if path.endswith("environ") else proc.get(path, "")

    monkeypatch.setattr(people, "read_or_none", wait)
    monkeypatch.setattr(people, "ANSWER_S", 0.2)
    for pids in seen(proc, monkeypatch):
        assert sorted(pids) == [*range(1, 61)]
    rows = {row["pid"]: row["variables"] for row in host.programs(PARAMETERS)["holders"]}
    assert rows == {pid: None if pid < 31 else {"NCCL_ALGO": "Ring"} for pid in range(1, 61)}
    sampled = load._programs(SimpleNamespace(processes=dict))  # type: ignore[arg-type]
    assert [sampled[pid]["variables"] for pid in ("1", "31")] == [None, {"WORLD_SIZE": "8"}]
    assert waited == [f"/proc/1/{name}" for name in ("environ", "io", "environ", "io")]
    ended.set()


def test_mappings_that_are_not_known_leave_the_programs_with_open_gpus(
    proc: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_users(proc, u1000=range(1, 2), u1001=range(2, 3))

    def users(pattern: str, mapped: bool = False, seconds: float = 8) -> dict[str, list[str]]:
        """Fail for mappings in less time than is left for the search without them."""
        if mapped and "2" not in listed:
            assert seconds + 8.5 + 0.5 < COLLECTORS["programs"][1]
            raise Failed("the kernel does not tell")
        return {pid: ["nvidia0"] for pid in ("1", "2")[: 1 + mapped]}

    monkeypatch.setattr(host, "users_of", users)
    monkeypatch.setattr(host, "_stuck", list)
    for listed, said in ((["2"], ""), ([], "the kernel does not tell")):
        found = host.programs(PARAMETERS)
        assert found["unmapped"] == said
        assert [row["pid"] for row in found["holders"]] == [1, *map(int, listed)]
