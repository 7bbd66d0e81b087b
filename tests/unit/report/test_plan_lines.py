"""Text of a plan about nodes that are newer than their lock."""

from __future__ import annotations

from gpuprov.apply.plan import NodePlan, full_plan
from gpuprov.drift.judge import Difference
from gpuprov.drift.text import value
from gpuprov.report.text import plan_lines, plan_sentence


def lines(there: str | None) -> list[str]:
    """Return the lines of a plan for a node with this version of a package, or without it."""
    because = Difference(
        "driver.packages",
        {"libcuda1": "535.261.03-1"},
        {"libcuda1": there},
        "error",
        "nvidia_driver",
        reboot=False,
    )
    plan = NodePlan("gpu1", ("preflight", "nvidia_driver"), reboot=False, because=(because,), beyond=())
    return list(plan_lines([plan]))


def test_a_plan_says_that_a_lock_goes_back() -> None:
    assert lines("535.309.01-0+deb12u1")[2:] == [
        "gpu1 has libcuda1 535.309.01-0+deb12u1, newer than the lock's 535.261.03-1:"
        " to go back, gpuprov apply --allow-downgrade"
    ]


def test_a_plan_that_goes_forward_says_nothing_of_it() -> None:
    for there in ("535.261.03-1~bpo1", "470.256.02-1", None):
        assert len(lines(there)) == 2


def test_what_no_role_corrects_has_a_way_out() -> None:
    count = Difference("gpu.count", 4, 8, "error", None, reboot=False)
    plan = NodePlan("gpu1", (), reboot=False, because=(), beyond=(count,))
    assert list(plan_lines([plan]))[-1] == (
        "gpu1 apply cannot fix this: gpu.count expected 4, is 8;"
        " see `gpuprov doctor`, or correct its group in fleet.yml"
    )


def test_the_last_line_counts_nodes_packages_and_reboots() -> None:
    wanted = {"libcuda1": "2", "nvidia-driver": "2", "nvidia-smi": "2"}
    there = {"libcuda1": "1", "nvidia-driver": None, "nvidia-smi": "2"}
    packages = Difference("driver.packages", wanted, there, "error", "nvidia_driver", reboot=False)
    clocks = Difference("gpu.clocks", {"graphics": 1}, {"graphics": 2}, "error", "gpu_settings", reboot=False)
    busy = NodePlan(
        "gpu1", ("nvidia_driver", "gpu_settings"), reboot=True, because=(packages, clocks), beyond=()
    )
    small = NodePlan("gpu2", ("gpu_settings",), reboot=False, because=(clocks,), beyond=())
    idle = NodePlan("gpu3", (), reboot=False, because=(), beyond=())
    assert list(plan_sentence([busy, small, idle])) == ["in total: 2 of 3 nodes, 2 packages, 1 reboot"]
    assert list(plan_sentence([small])) == ["in total: 1 of 1 node, no packages, no reboots"]
    assert list(plan_sentence([idle])) == []
    assert list(plan_sentence(full_plan(["gpu1"]))) == []


def test_a_nodes_value_has_a_limited_part_of_a_line() -> None:
    for wild in ("x" * 900_000, {f"k{at}": ["x" * 900_000] for at in range(10)}):
        assert len(value(wild)) == 1000
