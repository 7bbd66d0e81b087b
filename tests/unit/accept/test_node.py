"""The node's program without a GPU: its processes and how they end, its numbers, its refusals."""

from __future__ import annotations

import ast
import json
import math
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gpuprov.accept.judge import judge
from gpuprov.accept.node import kernels, main, memory, nccl, watch
from gpuprov.accept.node.matrix import R_8F_E4M3, R_16BF, R_16F, R_32F, R_64F, Products, numbers
from gpuprov.accept.node.memory import GIB, RESERVE, _processors, pattern
from gpuprov.accept.node.workers import Crew, end_all
from gpuprov.accept.program import KINDS, LEVELS, PLANS, program
from gpuprov.probe.node import variables
from gpuprov.probe.node.base import Failed
from tests import ROOT
from tests.unit.accept.recorded import recorded

NODE = ROOT / "gpuprov/accept/node"


def work(name: str, argument: Any) -> Any:
    """Run the test worker's action: hang, die, raise, or return the argument."""
    if name == "hang":
        time.sleep(600)
    if name == "die":
        os.kill(os.getpid(), signal.SIGUSR1)
    if name == "fail":
        raise Failed("cuInit: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)")
    if name == "break":
        raise KeyError(argument)
    if name == "infinite":
        return {"value": math.inf}
    return [argument]


@pytest.fixture
def crew() -> Iterator[Crew]:
    """Provide a crew of processes with a minute of time, which is ended after the test."""
    hired = Crew(time.monotonic() + 60, beat=False)
    yield hired
    hired.end()


def test_an_order_is_carried_out_while_others_are_asked(crew: Crew) -> None:
    early, other = crew.hire("early", work), crew.hire("other", work)
    crew.begin([early], "echo", 1)
    assert crew.ask([other], "echo", 2, 10)[0]["value"] == [2]
    assert crew.finish([early], 10)[0]["value"] == [1]


def test_an_early_order_that_hangs_is_ended_when_its_answer_is_due(crew: Crew) -> None:
    early, other = crew.hire("early", work), crew.hire("other", work)
    crew.begin([early], "hang", None)
    assert crew.ask([other], "echo", 2, 10)[0]["value"] == [2]
    assert early.alive
    assert "hangs" in crew.finish([early], 0.2)[0]["error"]
    assert gone(early.pid)


def test_all_processes_are_killed_before_the_first_is_waited_for(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill side by side: the end of a process that frees a GPU takes a quarter of a second."""
    calls: list[str] = []
    kill, wait = os.kill, os.waitpid
    monkeypatch.setattr(os, "kill", lambda *given: [calls.append("kill"), kill(*given)][1])
    monkeypatch.setattr(os, "waitpid", lambda *given: [calls.append("wait"), wait(*given)][1])
    hired = [crew.hire(str(number), work) for number in range(3)]
    end_all(hired)
    assert calls[:3] == ["kill"] * 3
    assert all(gone(worker.pid) for worker in hired)


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_workers_answer_side_by_side(crew: Crew) -> None:
    workers = [crew.hire(str(number), work) for number in range(3)]
    assert [answer["value"] for answer in crew.ask(workers, "echo", 7, 10)] == [[7]] * 3


def test_one_that_hangs_is_ended_and_the_others_go_on(crew: Crew) -> None:
    sound, hung = crew.hire("sound", work), crew.hire("hung", work)
    begun = time.monotonic()
    crew.ask([hung], "hang", None, 0.5)
    assert time.monotonic() - begun < 5
    assert "no answer in 0 s: the GPU or its driver hangs" in hung.answer["error"]
    assert gone(hung.pid)
    answers = crew.ask([sound, hung], "echo", 1, 10)
    assert answers[0]["value"] == [1]
    assert "hangs" in answers[1]["error"]


def test_nccl_needs_no_room_for_its_log_in_a_folder_of_all_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a /tmp that a user has filled: a log that ended before its paths was accepted."""
    monkeypatch.setattr(tempfile, "TemporaryFile", partial(open, "/dev/full", "r+b"))
    monkeypatch.setattr(nccl, "load_library", lambda *_: (Mock(), "libnccl.so.2"))
    for name in (*variables.ENVIRONMENT, "NCCL_DEBUG_FILE"):
        monkeypatch.setenv(name, "")
    library = nccl.Library([])
    with library._log, Path(os.environ["NCCL_DEBUG_FILE"]).open("w") as log:
        for line in ("NCCL version 2.28.3\n", "Channel 00/0 : 0[0] -> 1[0] via NET/Socket/0\n"):
            log.write(line)
            log.flush()
            assert library.log() == line


@pytest.mark.parametrize("stated", [None, "/run/mps"])
def test_a_worker_uses_only_an_mps_server_that_a_variable_names(
    stated: str | None, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have no folder in /tmp count, where libcuda looks for a server: any user can create or change it."""
    monkeypatch.delenv(variables.MPS_FOLDER, raising=False)
    if stated:
        monkeypatch.setenv(variables.MPS_FOLDER, stated)
    worker = crew.hire("one", lambda *_: os.environ.get(variables.MPS_FOLDER))
    [answer] = crew.ask([worker], "", None, 10)
    assert answer["value"] == (stated or "/proc/none")


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ("fail", "CUDA_ERROR_NO_DEVICE"),
        ("break", "KeyError"),
        ("infinite", "not JSON compliant"),
        ("die", "it ended by itself (signal 10)"),
    ],
)
def test_what_goes_wrong_is_the_answer(crew: Crew, order: str, said: str) -> None:
    """Check that a worker that dies, raises or returns no JSON has an error as its answer."""
    [answer] = crew.ask([crew.hire("one", work)], order, "x", 10)
    assert said in answer["error"]


def test_nobody_outlives_the_end(crew: Crew) -> None:
    workers = [crew.hire(str(number), work) for number in range(3)]
    crew.end()
    assert all(gone(worker.pid) for worker in workers)


def test_all_is_ended_when_the_controller_is_gone(tmp_path: Path) -> None:
    """End all workers when the controller's end of the pipe is closed, which the next heartbeat detects."""
    script = (
        "import os, sys, time\n"
        "from gpuprov.accept.node import workers\n"
        "workers.HEARTBEAT = 0.2\n"
        "import signal; signal.signal(signal.SIGPIPE, signal.SIG_IGN)\n"
        "crew = workers.Crew(time.monotonic() + 60, beat=True)\n"
        "one = crew.hire('one', lambda name, argument: time.sleep(600))\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(one.pid))\n"
        "try: crew.ask([one], 'any', None, 50)\n"
        "except workers.Gone: crew.end(); sys.exit(7)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read(1)  # the first heartbeat
    child.stdout.close()
    assert child.wait(20) == 7
    assert gone(int((tmp_path / "pid").read_text()))


class Pretended:
    """Fake GPU that answers from a recording."""

    fault: dict[int, str] = {}  # noqa: RUF012 - changed by tests, before they fork

    def __init__(self, index: int, plan: Any) -> None:
        self._row, self._fault = recorded("quick")["gpus"][index % 2], self.fault.get(index)

    def __call__(self, name: str, arguments: Any) -> Any:
        if self._fault == name:
            time.sleep(600)
        key = {"start": "device", "bandwidth": "memory"}.get(name, name)
        return self._row["matrix"][arguments[0]] if name == "matrix" else self._row[key]


class AllPretended(Pretended):
    def __call__(self, name: str, arguments: Any) -> Any:
        between = recorded("quick")["between"]
        return between["pairs"] if name == "pairs" else between["nccl"]


@pytest.fixture
def ring() -> Iterator[tuple[int, int]]:
    """Provide a pipe for the records of the kernel's log, one in each write."""
    ends = os.pipe2(os.O_NONBLOCK | os.O_DIRECT)
    yield ends
    for end in ends:
        os.close(end)


def sample_and_end(pipe: int) -> None:
    """Write samples of two GPUs at all times of the recording's load."""
    for at in range(370, 500, 2):
        keys = ("clock", "power_w", "temperature", "reasons")
        rows = [{"index": index, **dict.fromkeys(keys)} for index in range(2)]
        os.write(pipe, (json.dumps([at / 10, rows]) + "\n").encode())


def sample(pipe: int) -> None:
    """Write the same samples and wait for the end."""
    sample_and_end(pipe)
    time.sleep(600)


@pytest.fixture
def pretended(ring: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """Replace the GPUs and the readings of NVML by recorded ones; return GPU → its fault, to be filled by the
    test.
    """
    quick = recorded("quick")
    monkeypatch.setattr(main, "OneGpu", Pretended)
    monkeypatch.setattr(main, "AllGpus", AllPretended)
    monkeypatch.setattr(watch, "first_look", lambda: quick["before"])
    monkeypatch.setattr(watch, "last_look", lambda: quick["after"])
    monkeypatch.setattr(watch, "programs_after", lambda own: {"programs": {}, "own": own})
    monkeypatch.setattr(watch, "sample", sample)
    monkeypatch.setattr(watch, "open_ring", lambda _: ring[0])
    monkeypatch.setattr(main, "START_S", 2.0)
    monkeypatch.setattr(main, "SPARE_S", 0.5)
    faults: dict[int, str] = {}
    monkeypatch.setattr(Pretended, "fault", faults)
    return faults


PLAN = {**PLANS["quick"], "level": "quick", "kinds": ["bf16", "fp8"]}


def test_a_run_asks_for_everything(crew: Crew, pretended: dict[int, str]) -> None:
    result = main.measure(crew, PLAN)
    steps = {"index", "device", "memory", "host", "pattern", "matrix"}
    assert [set(row) for row in result["gpus"]] == [steps] * 2
    assert [set(row["matrix"]) for row in result["gpus"]] == [{"bf16", "fp8"}] * 2
    assert len(result["between"]["pairs"]) == 2
    assert json.dumps(result)


XID = "NVRM: Xid (PCI:0000:c1:00): {}, pid=4711, name=eve, {}"
"""Message of the driver: code, text."""


class Faulty(Pretended):
    """Fake GPU about which the driver has messages when its memory is tested."""

    said: tuple[bytes, ...] = ()
    ring = -1

    def __call__(self, name: str, arguments: Any) -> Any:
        if name == "pattern":
            for text in self.said:
                os.write(self.ring, b"3,1,5000000,-;" + text + b"\n")
        return super().__call__(name, arguments)


@pytest.mark.parametrize(
    ("codes", "verdict"), [([], "accepted"), ([31, 13, 43, 45], "accepted"), ([31, 79, 45], "rejected")]
)
def test_errors_that_the_driver_reports_under_load_are_faults_unless_a_program_causes_them(
    codes: list[int],
    verdict: str,
    crew: Crew,
    pretended: dict[int, str],
    ring: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Have a user who causes millions of messages and Xids, on GPUs that fail or do not."""
    flood = [f"python[{pid}]: segfault at 0 ip 55d2".encode() for pid in range(200)]
    said = [*flood, *(XID.format(code, "text").encode() for code in codes), *flood]
    monkeypatch.setattr(main, "OneGpu", Faulty)
    monkeypatch.setattr(Faulty, "said", tuple(said))
    monkeypatch.setattr(Faulty, "ring", ring[1])
    os.set_blocking(ring[1], True)
    [judged] = judge({"gpu01": main.measure(crew, {**PLAN, "kinds": KINDS})})
    faults = [found.text for found in judged.faults]
    assert (judged.verdict, [text for text in faults if ": 79," not in text]) == (verdict, [])
    assert "xid.unread" not in {found.rule for found in judged.findings}


def test_without_a_kernel_log_it_is_not_known_whether_there_were_errors(
    crew: Crew, pretended: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "open_ring", lambda _: os.open("/none", os.O_RDONLY))
    result = main.measure(crew, PLAN)
    assert result["after"]["xids"] == {"error": "no kernel log is read"}
    assert "xid.unread" in {found.rule for found in judge({"gpu01": result})[0].findings}


def test_a_reader_of_the_log_that_was_ended_has_lost_messages(
    crew: Crew, pretended: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def follow(pipe: int) -> None:
        os.write(pipe, b'{"lines": []}\n')

    monkeypatch.setattr(watch, "follow", follow)
    result = main.measure(crew, PLAN)
    assert result["after"]["xids"]["lost"] == "the process that read the kernel's log was ended"
    assert "xid.lost" in {found.rule for found in judge({"gpu01": result})[0].faults}


@pytest.mark.parametrize("early", [lambda _: None, sample_and_end])
def test_a_sampler_that_was_ended_does_not_show_that_nothing_slowed(
    early: Any, crew: Crew, pretended: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have the kernel end it for want of memory, at once or after samples."""
    monkeypatch.setattr(watch, "sample", early)
    result = main.measure(crew, {**PLAN, "kinds": KINDS})
    assert {found.rule for found in judge({"gpu01": result})[0].faults} == {"load.samples"}


class Asked(Pretended):
    """Fake GPU that answers with the arguments of copies to the host."""

    def __call__(self, name: str, arguments: Any) -> Any:
        return {"asked": arguments} if name == "host" else super().__call__(name, arguments)


def test_all_gpus_share_the_time_of_copies_to_the_host(
    crew: Crew, pretended: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take no longer on many GPUs, which are measured one after the other."""
    monkeypatch.setattr(main, "OneGpu", Asked)
    result = main.measure(crew, PLAN)
    assert [row["host"]["asked"] for row in result["gpus"]] == [PLAN["host"] / 2] * 2


DISTURBED = recorded("disturbed", "h100x4")["gpus"][1]["host"]["d2h_near"]
STEADY = recorded("quick", "h100x4")["gpus"][1]["host"]["d2h_near"]
"""Rates of copies of one H100 in two runs; its virtual machine's host had other guests."""


class Shared(Pretended):
    """Fake GPU whose copies from the host are disturbed as often as `times` says."""

    times = 1

    def __init__(self, index: int, plan: Any) -> None:
        super().__init__(index, plan)
        self._index, self._asked = index, 0

    def __call__(self, name: str, arguments: Any) -> Any:
        if name != "host":
            return super().__call__(name, arguments)
        self._asked += 1
        disturbed = self._index == 1 and self._asked <= self.times
        return {"h2d_near": STEADY, "d2h_near": DISTURBED if disturbed else STEADY, "near": 0}


@pytest.mark.parametrize(
    ("times", "value", "tries", "rules"),
    [
        (0, STEADY["value"], None, set()),
        (1, STEADY["value"], 2, {"host.disturbed"}),
        (2, STEADY["value"], 3, {"host.disturbed"}),
        (9, DISTURBED["value"], 3, {"d2h.slow"}),
    ],
)
def test_copies_that_something_disturbed_are_measured_again(
    crew: Crew,
    pretended: dict[int, str],
    monkeypatch: pytest.MonkeyPatch,
    times: int,
    value: float,
    tries: int | None,
    rules: set[str],
) -> None:
    """Reject a GPU whose copies stay slow, and no other."""
    monkeypatch.setattr(main, "OneGpu", Shared)
    monkeypatch.setattr(Shared, "times", times)
    result = main.measure(crew, {**PLAN, "kinds": KINDS})
    steady, shared = (row["host"] for row in result["gpus"])
    assert "tries" not in steady
    assert (shared["d2h_near"]["value"], shared.get("tries")) == (value, tries)
    judged = judge({"gpu01": result})[0]
    assert {found.rule for found in judged.findings if found.level != "ok"} == rules
    assert judged.verdict == ("rejected" if times == 9 else "accepted")
    warned = [found.text for found in judged.findings if found.rule == "host.disturbed"]
    assert all(text.startswith("GPU 1 d2h: 45.2 GB/s, measured again 55.2: something") for text in warned)


def test_copies_of_a_slow_link_are_steady() -> None:
    slow = {"least": 26.9, "value": 27.0, "most": 27.1}
    assert not memory.unsteady({"h2d_near": slow, "near": 0, "far": None, "first": {"h2d_near": 9.0}})
    assert memory.unsteady({"h2d_near": slow, "d2h_near": DISTURBED})


def test_a_gpu_that_is_lost_when_its_copies_are_measured_again_is_a_fault() -> None:
    lost = {"error": "no answer in 45 s: the GPU or its driver hangs"}
    assert memory.better({"d2h_near": DISTURBED}, lost) == lost


class Exclusive(AllPretended):
    """Fake GPUs in compute mode exclusive process: they are opened after the load only."""

    tries = 0

    def __call__(self, name: str, arguments: Any) -> Any:
        if name == "open":
            self.tries += 1
            if self.tries == 1:
                raise Failed("cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE (busy or unavailable)")
        return super().__call__(name, arguments)


def test_gpus_that_accept_one_process_are_opened_after_the_load(
    crew: Crew, pretended: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "AllGpus", Exclusive)
    assert len(main.measure(crew, PLAN)["between"]["pairs"]) == 2


class Closed(AllPretended):
    """Fake GPUs that cannot be opened together."""

    def __call__(self, name: str, arguments: Any) -> Any:
        if name != "open":
            raise AssertionError(name)
        raise Failed("cuInit: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)")


def test_gpus_that_cannot_be_opened_together_are_a_fault(
    crew: Crew, pretended: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "AllGpus", Closed)
    result = main.measure(crew, PLAN)
    assert "CUDA_ERROR_NO_DEVICE" in result["between"]["pairs"]["error"]
    assert "CUDA_ERROR_NO_DEVICE" in result["between"]["nccl"]["error"]
    assert result["gpus"][0]["matrix"]["fp8"]["value"] > 1000
    rules = {found.rule for found in judge({"gpu01": result})[0].faults}
    assert {"peer.error", "nccl.error"} <= rules


def test_a_gpu_that_is_lost_under_load_is_named_and_the_other_is_measured(
    crew: Crew, pretended: dict[int, str]
) -> None:
    pretended[1] = "host"
    result = main.measure(crew, PLAN)
    assert "hangs" in result["gpus"][1]["host"]["error"]
    assert "hangs" in result["gpus"][1]["matrix"]["bf16"]["error"]
    assert result["gpus"][0]["matrix"]["fp8"]["value"] > 1000


@pytest.mark.parametrize(
    ("change", "plan", "said"),
    [
        ({"programs": {"1": [[4711, 900]]}}, {}, "GPUs are in use: GPU 1: pid 4711 (900 MiB)"),
        ({"programs": {"0": None, "1": [[4711, 900]]}}, {}, "GPUs are in use: GPU 1: pid 4711 (900 MiB)"),
        ({"programs": {"0": None, "1": None}}, {}, "NVML does not list the programs on GPU 0, 1"),
        ({"programs": {"0": None}}, {"busy": True}, None),
        ({"schedulers": ["Slurm"]}, {}, "Slurm may start jobs here"),
        ({"schedulers": ["Slurm"]}, {"drained": True}, None),
        ({"programs": {"1": [[4711, 900]]}}, {"busy": True}, None),
        ({"gpus": []}, {}, "no GPU answers"),
        ({"counters": [{"mig": True}]}, {}, "MIG is on: GPUs in parts are not measured"),
        ({"error": "libnvidia-ml.so.1 cannot be loaded"}, {}, "libnvidia-ml.so.1 cannot be loaded"),
        ({}, {}, None),
    ],
)
def test_what_is_refused(change: dict[str, Any], plan: dict[str, Any], said: str | None) -> None:
    """Check the message with which the node's program refuses to start in a state, None if it starts."""
    assert main.refusal({**recorded("quick")["before"], **change}, plan) == said


def test_a_program_that_started_during_the_load_is_refused_as_one_before_it(
    crew: Crew, pretended: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep no measurements where a baseline has them, unless the plan allows programs."""
    programs = {"1": [[4711, 900]]}
    monkeypatch.setattr(watch, "programs_after", lambda _: {"programs": programs})
    busy = main.measure(crew, {**PLAN, "busy": True})
    assert (busy["programs"]["programs"], len(busy["gpus"])) == (programs, 2)
    result = main.measure(crew, PLAN)
    assert set(result) == {"schema", "host", "at", "level", "before", "refused", "loaded"}
    [judged] = judge({"gpu01": result})
    assert judged.verdict == "refused"
    assert "GPUs are in use: GPU 1: pid 4711 (900 MiB); wait for those programs" in str(judged.failure)


def test_programs_that_are_not_known_after_the_load_are_a_fault(
    crew: Crew, pretended: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "programs_after", lambda _: {"programs": {"1": None}})
    faults = judge({"gpu01": main.measure(crew, {**PLAN, "kinds": KINDS})})[0].faults
    assert [found.rule for found in faults] == ["device.programs"]
    assert faults[0].text.endswith("meanwhile: NVML does not list those on GPU 1")


def test_a_killed_process_that_sleeps_in_the_kernel_is_no_program_of_others(
    crew: Crew, pretended: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended[1] = "host"
    monkeypatch.setattr(os, "waitpid", lambda *_: (0, 0))
    own = main.measure(crew, PLAN)["programs"]["own"]
    assert own == sorted(own)
    assert len(own) == 3  # of each GPU, and of all


def test_load_is_what_was_read_in_its_time() -> None:
    def reading(at: int) -> dict[str, Any]:
        return {"index": 0, "clock": at, "power_w": 5.0, "temperature": None, "reasons": at % 2 * 4}

    samples = [[at / 10, [reading(at)]] for at in range(100)]
    held = watch.sample_summary(samples, 0, 2.0, 4.0)
    assert held["clock"] == [27, 33, 38]
    assert (held["reasons"], held["temperature"], held["samples"]) == (4, None, 12)
    assert watch.sample_summary(samples, 1, 2.0, 4.0)["clock"] is None


def test_a_machine_without_a_driver_says_so() -> None:
    payload = program("quick")
    done = subprocess.run(
        ["/bin/sh", "-c", payload.command], input=payload.stdin, capture_output=True, timeout=60, check=False
    )
    result = payload.answer(done.stdout, done.stderr)
    assert "libnvidia-ml.so.1 cannot be loaded" in result["refused"]


def test_the_program_fits_one_command() -> None:
    assert len(program("full").stdin) < 100_000
    assert set(PLANS) == set(LEVELS)


@pytest.mark.parametrize(
    ("kind", "code"), [(R_16F, "e"), (R_32F, "f"), (R_64F, "d")], ids=["half", "single", "double"]
)
def test_numbers_out_of_memory(kind: int, code: str) -> None:
    values = [1.0, -0.125, 1.5]
    assert numbers(kind, struct.pack(f"<3{code}", *values)) == values


def test_numbers_without_a_name_in_python() -> None:
    assert numbers(R_16BF, bytes.fromhex("803f 00c0 403e")) == [1.0, -2.0, 0.1875]
    assert numbers(R_8F_E4M3, bytes([0x38, 0xB8, 0x3C, 0x20, 0x7E, 0x01])) == [1, -1, 1.5, 0.125, 448, 2**-9]
    assert math.isnan(numbers(R_8F_E4M3, b"\x7f")[0])


class Ones:
    """Fake GPU whose factors are ones, with some bytes as the product."""

    def __init__(self, product: bytes) -> None:
        self._product = product

    def read(self, address: int, size: int) -> bytes:
        return self._product if size == 2 else struct.pack("<e", 1.0) * (size // 2)


@pytest.mark.parametrize(("product", "off"), [(4.0, 0.0), (6.0, 0.5), (math.inf, 1e9), (math.nan, 1e9)])
def test_a_product_that_is_no_number_is_wrong(product: float, off: float) -> None:
    """Measure an error that JSON can express: with another one the node has no result in place of a fault."""
    products = object.__new__(Products)
    products._gpu = Ones(struct.pack("<e", product))  # type: ignore[assignment]
    assert products._worst(main.KINDS["fp16"], 4, [0, 0], 0) == off


class FreeMemory:
    """Fake GPU with some free memory, which keeps what is written."""

    def __init__(self, free: int) -> None:
        self.free_bytes = free

    def memory(self) -> tuple[int, int]:
        return self.free_bytes, 80 * GIB

    def allocate(self, size: int) -> int:
        self.free_bytes -= size
        return self.free_bytes

    def fill(self, *_: Any) -> None: ...

    def check(self, *_: Any) -> None: ...

    def free(self, *_: int) -> None: ...


def test_a_memory_that_is_not_tested_is_an_error() -> None:
    for free in (0, RESERVE - 1, RESERVE + GIB - 1):
        with pytest.raises(
            Failed, match=rf"^{free // 2**20} MiB of memory are free, expected at least 3072: "
        ):
            pattern(FreeMemory(free), 16 * GIB, 0)  # type: ignore[arg-type]
    assert pattern(FreeMemory(RESERVE + GIB), 16 * GIB, 0)["bytes"] == GIB  # type: ignore[arg-type]
    assert pattern(FreeMemory(80 * GIB), 16 * GIB, 0)["bytes"] == 16 * GIB  # type: ignore[arg-type]


def test_a_word_of_the_pattern() -> None:
    plain = kernels.word(12345, 99, 0, 0, 0xFFFFFFFF)
    assert plain ^ 0xFFFFFFFF == kernels.word(12345, 99, 0xFFFFFFFF, 0, 0xFFFFFFFF)
    assert len({kernels.word(place, 99, 0, 0, 0xFFFFFFFF) for place in range(5000)}) == 5000
    # A factor has a sign, a fraction, and one of the four exponents from 124 to 127.
    halves = kernels.word(12345, 99, 0, 0x3E003E00, 0x81FF81FF).to_bytes(4, "little")
    assert all(0.125 <= abs(value) < 2 for value in numbers(R_16BF, halves))


def test_each_kernel_is_whole() -> None:
    """Check that the program for the GPU has four kernels with balanced brackets."""
    text = kernels.ptx()
    assert text.count(".visible .entry") == 4
    assert text.count("{\n") == text.count("}\n") == 4


@pytest.mark.parametrize("path", sorted(NODE.glob("*.py")), ids=lambda path: path.stem)
def test_the_node_side_is_python_3_6(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text, feature_version=(3, 6))
    assert "annotations" not in text
    arguments = {word.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for word in node.keywords}
    assert not arguments & {"capture_output", "text", "missing_ok", "dirs_exist_ok", "strict"}
    methods = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not methods & {"removeprefix", "removesuffix", "isascii", "fromisoformat", "prod", "cache"}


def test_processors_of_a_node() -> None:
    assert _processors("0-3,8,10-11") == {0, 1, 2, 3, 8, 10, 11}
