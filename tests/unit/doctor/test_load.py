"""Search for the bottleneck: recorded loads on two real H200, and variants of these recordings."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from gpuprov.doctor.fault import Fault
from gpuprov.doctor.load.verdict import LOAD_RULES, judge_load
from tests import ROOT

Raw = dict[str, Any]
RECORDED = {
    "onecore": ("load.one_core", "one core limits GPU 0: python3 (833) has a thread at 100% of a core"),
    "disk": ("load.storage", "GPUs wait for storage: GPU 0 3% busy"),
    "compute": ("load.compute_bound", "compute-bound, as it should be: GPU 0 100% busy, 692 W"),
    "small": ("load.one_core", "one core limits GPU 0: python3 (1009) has a thread at 100% of a core"),
    "nccl": ("load.straggler", "GPU 0 waits in a collective for GPU 1: 0% busy there, process 1109 sleeps"),
}


def recorded(name: str) -> Raw:
    """Return the recorded sample of a load."""
    answer = json.loads((ROOT / f"tests/recorded/doctor/load-{name}.json").read_text())
    result: Raw = answer["collectors"]["load"]
    return result


@pytest.mark.parametrize("name", RECORDED)
def test_the_verdict_on_a_recorded_load(name: str) -> None:
    rule, sentence = RECORDED[name]
    found = judge_load(recorded(name))
    assert (found[0].rule, found[0].text[: len(sentence)]) == (rule, sentence)
    assert len(found) == 1, found


def gpus(result: Raw, index: int, **values: float) -> None:
    """Change the values of one GPU in all readings."""
    for reading in result["readings"]:
        reading[index].update(values)


def processor_time(result: Raw, share: float) -> None:
    """Set the CPU time that the busy program of the recording uses, in cores."""
    for pid, row in result["second"]["programs"].items():
        before = result["first"]["programs"][pid]["threads"]
        for number in row["threads"]:
            ticks = share * result["ticks"] * result["seconds"] if number == pid else 0
            row["threads"][number][1] = before[number][1] + int(ticks)


def full_cores(result: Raw) -> None:
    """Make all processors busy."""
    processor_time(result, 0.5)
    for name, ticks in result["second"]["cpus"].items():
        before = result["first"]["cpus"][name]
        result["second"]["cpus"][name] = [before[0] + 500, before[1], before[2] + 510]
        del ticks


def swapping(result: Raw) -> None:
    """Make the host swap out 90,000 pages."""
    processor_time(result, 0.1)
    result["second"]["vm"]["pswpout"] = str(int(result["first"]["vm"]["pswpout"]) + 90000)


def small_kernels(result: Raw) -> None:
    """Make GPU 0 fully used at low power."""
    gpus(result, 0, gpu=100, memory=2, power_w=180)


def all_wait(result: Raw) -> None:
    """Make GPU 1 fully used at low power, without use of its memory."""
    gpus(result, 1, gpu=100, memory=0, power_w=130)


def bandwidth(result: Raw) -> None:
    """Make GPU 0's memory the limit."""
    gpus(result, 0, gpu=99, memory=95, power_w=420)


def copies(result: Raw) -> None:
    """Make GPU 0 receive 52 GB/s over PCIe."""
    gpus(result, 0, gpu=70, received_kb=52e6, power_w=250)


def hot(result: Raw) -> None:
    """Throttle GPU 0 for heat."""
    gpus(result, 0, reasons=64)


def idle(result: Raw) -> None:
    """Make GPU 0 idle with memory in use, and its program too."""
    gpus(result, 0, gpu=0, used_mib=70000)
    processor_time(result, 0.0)


def hanging(result: Raw) -> None:
    """Make GPU 0 idle, and its programs sleep in the kernel in each reading."""
    gpus(result, 0, gpu=0)
    processor_time(result, 0.0)
    for pid, states in result["states"].items():
        result["states"][pid] = "D" * len(states)


def two_programs(result: Raw) -> None:
    """Put a second working program on GPU 0."""
    gpus(result, 0, gpu=80, power_w=300)
    for look in ("first", "second"):
        [(pid, row)] = list(result[look]["programs"].items())[:1]
        result[look]["programs"]["99"] = {**deepcopy(row), "holder": "99"}
    result["processes"]["0"] = [[int(pid), 600], [99, 600]]


def one_of_two(result: Raw) -> None:
    """Make the program hold both GPUs and use only GPU 0."""
    gpus(result, 0, gpu=80, power_w=300)
    [(pid, _)] = list(result["second"]["programs"].items())[:1]
    result["processes"] = {"0": [[int(pid), 600]], "1": [[int(pid), 600]]}


def at_line_rate(result: Raw) -> None:
    """Send 6.1 GB/s through a bond of 50 Gbit/s while InfiniBand is quiet."""
    for look, count in (("first", 0), ("second", int(6.1e9 * result["seconds"]))):
        result[look]["network"] = {"bond0": [count, 0, 50 * 10**9], "mlx5_0/1": [0, 0, 400 * 10**9]}


PICTURES: dict[str, tuple[str, Callable[[Raw], None]]] = {
    "load.all_cores": ("onecore", full_cores),
    "load.swap": ("onecore", swapping),
    "load.small_kernels": ("onecore", small_kernels),
    "load.straggler": ("nccl", all_wait),
    "load.memory_bound": ("compute", bandwidth),
    "load.pcie": ("onecore", copies),
    "load.throttled": ("compute", hot),
    "load.idle_holder": ("onecore", idle),
    "load.hang": ("onecore", hanging),
    "load.shared": ("onecore", two_programs),
    "load.one_of_several": ("onecore", one_of_two),
    "load.network": ("compute", at_line_rate),
}


@pytest.mark.parametrize("rule", PICTURES)
def test_a_picture_is_reported(rule: str) -> None:
    name, change = PICTURES[rule]
    result = recorded(name)
    change(result)
    found = judge_load(result)
    assert rule in [each.rule for each in found], [each.text for each in found]
    for fault in found:
        assert isinstance(fault, Fault)
        assert fault.seen
        assert fault.cause
        assert fault.mend


def test_every_rule_of_load_was_seen_speaking() -> None:
    assert set(LOAD_RULES) == {rule for rule, _ in RECORDED.values()} | set(PICTURES)


def test_nobody_on_the_gpus() -> None:
    result = recorded("onecore")
    for look in ("first", "second"):
        result[look]["programs"] = {}
    result["processes"] = {}
    gpus(result, 0, gpu=0, used_mib=0)
    [only] = judge_load(result)
    assert (only.severity, only.rule) == ("hint", "load.none")
    assert only.text.startswith("no process uses a GPU")


def test_a_reading_that_failed_leaves_the_others() -> None:
    result = recorded("compute")
    result["readings"][3] = {"error": "nvidia-smi did not answer in time"}
    assert judge_load(result)[0].rule == "load.compute_bound"


def test_a_link_that_was_idle_at_first_is_not_taken_for_a_slow_one() -> None:
    result = recorded("onecore")
    gpus(result, 0, gpu=70, received_kb=20e6, power_w=250)
    for reading in result["readings"][: len(result["readings"]) // 2]:
        reading[0]["generation"] = 1
    assert "load.pcie" not in [fault.rule for fault in judge_load(result)]
