"""Text of a plan about the builders whose modules nodes would get."""

from __future__ import annotations

from gpuprov.apply.plan import full_plan
from gpuprov.report.text import trust_lines
from tests.unit.apply.kernel_modules.test_once import NAMES, locked


def test_a_plan_says_whose_root_decides() -> None:
    lock = locked(builder="a1", builder_reason="stated: root on a1 decides")
    assert list(trust_lines(lock, full_plan(NAMES))) == [
        "a[2-3] the module comes from a1 (stated: root on a1 decides)"
    ]
    assert not list(trust_lines(locked(builder=None), full_plan(NAMES)))
