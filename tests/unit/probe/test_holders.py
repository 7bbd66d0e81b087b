"""Programs that use a GPU, as the probe finds them: those that the probe runs itself are not among them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
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
    assert host._stuck(people.People()) == [["a (strange) D name", "12", "io_schedule"]]


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
    found = people.variables_of(pid, re.compile("NCCL_"), people.People())
    assert found is not None
    return found


def with_users(proc: dict[str, str], **users: range) -> None:
    """Add the processes of users, `u1000`; all of them use a GPU, and sleep in the kernel."""
    for user, pids in users.items():
        for pid in pids:
            proc[f"/proc/{pid}/status"] = f"Uid:\t{user[1:]}\t0\n"
            proc[f"/proc/{pid}/stat"] = f"{pid} (python) D 1 1"


def in_group(proc: dict[str, str], group: str, pids: range) -> None:
    """Have processes in a control group, of which the newer hierarchy does not tell."""
    proc.update({f"/proc/{pid}/cgroup": f"9:name=systemd:{group}\n0::/\n" for pid in pids})


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


ID, OTHER, POD = "0123456789abcdef" * 4, "f" * 64, "pod01234567_89ab_cdef_0123_456789abcdef"
SCOPE = f"/system.slice/docker-{ID}.scope"
ANN, ATTACH = "/user.slice/user-1000.slice", "/system.slice/attach.service"


@pytest.mark.parametrize(
    ("group", "share"),
    [
        (SCOPE, SCOPE),
        (f"{SCOPE}/own/{OTHER}", SCOPE),
        (f"/docker/{ID}/docker/{OTHER}", f"/docker/{ID}"),
        (f"/machine.slice/libpod-{ID}.scope/container", f"/machine.slice/libpod-{ID}.scope"),
        ("/machine.slice/systemd-nspawn@a.service/payload", "/machine.slice/systemd-nspawn@a.service"),
        (f"/kubepods/burstable/{POD.replace('_', '-')}/{ID}", f"/kubepods/burstable/{POD.replace('_', '-')}"),
        (f"/kubepods.slice/kubepods-{POD}.slice/crio-{ID}.scope", f"/kubepods.slice/kubepods-{POD}.slice"),
        (f"/lxc.payload.a/{OTHER}/{ID}", "/lxc.payload.a"),
        *((group, "7") for group in ("/", "/init.scope", "/slurm/uid_7/job_1", f"{ATTACH}/{ID}")),
        ("/system.slice/slurmstepd.scope/job_1/step_0/user/task_0", "7"),
        (f"{ANN}/user@1000.service/user.slice/libpod-{ID}.scope", "7"),
        (f"{ANN}/session-1.scope/{ID}", "7"),
    ],
)
def test_a_containers_share_is_what_roots_programs_named(
    proc: dict[str, str], group: str, share: str
) -> None:
    """Do not count groups that a container, a service or a user has below its own."""
    with_users(proc, u7=range(1, 2))
    in_group(proc, group, range(1, 2))
    assert people.People().owner("1") == share


@pytest.mark.parametrize(
    "users", [["u0"], [f"u{n}" for n in range(1, 65)], [f"u{200000 + n}" for n in range(64)]]
)
def test_a_container_has_one_share_with_all_numbers_that_it_chooses(
    proc: dict[str, str], monkeypatch: pytest.MonkeyPatch, users: list[str]
) -> None:
    """Run many programs in a container as root, and under numbers of its own or of a daemon's range."""
    proc[people.SUBORDINATE] = "dockremap:200000:65536\n"
    for number in range(1, 900):
        with_users(proc, **{users[number % len(users)]: range(number, number + 1)})
    with_users(proc, u0=range(990, 994))
    in_group(proc, SCOPE, range(1, 900))
    in_group(proc, f"/docker/{OTHER}", range(990, 992))
    for pids in seen(proc, monkeypatch):
        assert pids[:6] == [1, 990, 992, 2, 991, 993]


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
    for pids in seen(proc, monkeypatch):
        assert sorted(pids) == [*range(1, 61)]
    rows = {row["pid"]: row["variables"] for row in host.programs(PARAMETERS)["holders"]}
    assert rows == {pid: None if pid < 31 else {"NCCL_ALGO": "Ring"} for pid in range(1, 61)}
    sampled = load._programs(SimpleNamespace(processes=dict))  # type: ignore[arg-type]
    assert [sampled[pid]["variables"] for pid in ("1", "31")] == [None, {"WORLD_SIZE": "8"}]
    assert waited == [f"/proc/1/{name}" for name in ("environ", "io", "environ", "io")]
    ended.set()


def test_many_users_who_keep_the_kernel_from_answering_cost_some_seconds_together(
    proc: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wait for each of as many silent users as there are places, and read the variables of the last one."""
    with_users(proc, **{f"u{1000 + n}": range(n, n + 1) for n in range(1, 65)})
    ended = threading.Event()

    def wait(path: str, limit: int = 1 << 22) -> str:
        """Answer after the test about all programs but the last one."""
        if path.endswith("/environ"):
            if "/64/" not in path:
                ended.wait(60)
            return "NCCL_ALGO=Ring\0"
        return proc.get(path, "")

    monkeypatch.setattr(people, "read_or_none", wait)
    monkeypatch.setattr(host, "_stuck", lambda people: [])
    begun = time.monotonic()
    holders = {str(pid): ["nvidia0"] for pid in range(1, 65)}
    monkeypatch.setattr(host, "users_of", lambda pattern, **_: holders)
    rows = {row["pid"]: row["variables"] for row in host.programs(PARAMETERS)["holders"]}
    assert time.monotonic() - begun < COLLECTORS["programs"][1] / 3
    assert rows == {pid: None if pid < 64 else {"NCCL_ALGO": "Ring"} for pid in range(1, 65)}
    ended.set()


def test_a_user_whose_answers_are_slow_is_waited_for_no_longer_than_one_without(
    proc: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_users(proc, u1000=range(1, 64), u1001=range(64, 65))
    slow, asked = threading.Event(), people.People()
    begun = time.monotonic()
    answers = [asked.ask(str(pid), slow.wait, people.WAIT_S / 16) for pid in range(1, 64)]
    assert time.monotonic() - begun < people.WAIT_S / 2
    assert (answers[0], answers[-1]) == (False, None)
    assert asked.ask("64", int) == 0


def test_slow_rows_of_a_user_count_as_several(proc: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each row of one user take the time of four; the other's come first, and the time is bounded."""
    with_users(proc, u1000=range(1, 64), u1001=range(64, 80))

    def row(pid: str) -> str:
        end = time.thread_time() + 4 * people.ROW_S if int(pid) < 64 else 0
        while time.thread_time() < end:
            pass
        return pid

    rows = people.People().rows(map(str, range(1, 80)), row, 24)
    assert rows[1:4] == ["64", "65", "66"]
    assert 2 <= sum(int(pid) < 64 for pid in rows) <= 4


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
    monkeypatch.setattr(host, "_stuck", lambda people: [])
    for listed, said in ((["2"], ""), ([], "the kernel does not tell")):
        found = host.programs(PARAMETERS)
        assert found["unmapped"] == said
        assert [row["pid"] for row in found["holders"]] == [1, *map(int, listed)]
