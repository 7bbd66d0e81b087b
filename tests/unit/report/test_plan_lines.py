"""Text of a plan about nodes that are newer than their lock."""

from __future__ import annotations

from gpuprov.apply.plan import NodePlan
from gpuprov.drift.judge import Difference
from gpuprov.report.text import plan_lines


def lines(there: str | None) -> list[str]:
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
