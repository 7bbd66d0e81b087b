"""Plans: the roles that correct a node's drift, the roles that have to follow them, and reboots."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from gpuprov.apply.plan import NodePlan, plan_node
from gpuprov.drift.judge import Difference, NodeDrift, judge
from gpuprov.model.lock import Setting, read_lock
from gpuprov.probe.facts import Facts
from gpuprov.roles import expectations
from tests import RECORDED_FACTS, RECORDED_LOCK

Collectors = dict[str, Any]


def plan(*roles: str | None, reboot: bool = False) -> NodePlan:
    """Return the plan for differences that these roles correct."""
    found = tuple(Difference("check", "this", "that", "error", role, reboot) for role in roles)
    return plan_node(NodeDrift("gpu01", "drifted", found))


def test_without_drift_nothing_is_planned() -> None:
    assert plan().empty


def test_a_component_gets_its_source_before_and_its_hold_after_it() -> None:
    roles = plan("nvidia_driver").roles
    assert roles == ("preflight", "repositories", "nvidia_driver", "package_pins")


def test_a_role_without_components_needs_neither() -> None:
    assert plan("system_tuning").roles == ("preflight", "system_tuning")


def test_docker_is_looked_at_again_after_the_toolkit_whose_hook_it_reads() -> None:
    roles = plan("container_toolkit").roles
    assert roles.index("docker") == roles.index("container_toolkit") + 1


def test_what_no_role_and_no_reboot_corrects_is_beyond_the_plan() -> None:
    lost = plan(None)
    assert (lost.empty, len(lost.beyond), lost.because) == (True, 1, ())
    assert plan(None, reboot=True).beyond == ()


@pytest.mark.parametrize(
    ("expected", "actual", "newer"),
    [
        ({"a": "1"}, {"a": "2"}, ["a 2, newer than the lock's 1"]),
        ({"a": "1"}, {"a": 2}, []),
        ({"a": None}, {"a": "2"}, []),
        ({"a": "1"}, {"a": "\n"}, []),
        ({"a": "1"}, {"a": "2" * 257}, []),
        (1, {"a": "2"}, []),
    ],
)
def test_only_versions_are_compared(expected: Any, actual: Any, newer: list[str]) -> None:
    found = Difference("pins.packages", expected, actual, "error", "package_pins", reboot=False)
    assert plan_node(NodeDrift("gpu01", "drifted", (found,))).newer == newer


def with_another_module(collectors: Collectors) -> None:
    """Load a driver of another version than the lock's."""
    modules = collectors["modules"]
    modules["driver"] = modules["driver"].replace("535.309.01", "535.261.03")


def with_nouveau(collectors: Collectors) -> None:
    """Load nouveau too."""
    collectors["modules"]["loaded"] += "nouveau 2400256 - - Live 0xffffffffc0400000\n"


def with_pending(mode: str) -> Callable[[Collectors], None]:
    """Return a change of facts: ECC or MIG becomes another after the next reboot."""

    def change(collectors: Collectors) -> None:
        """Change the pending mode of all GPUs."""
        smi = collectors["smi"]
        was, will = ("Enabled", "Disabled") if mode == "ecc" else ("Disabled", "Enabled")
        assert f"<pending_{mode}>{was}" in smi["stdout"]
        smi["stdout"] = smi["stdout"].replace(f"<pending_{mode}>{was}", f"<pending_{mode}>{will}")

    return change


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        pytest.param({}, with_another_module, id="another module of the driver is loaded"),
        pytest.param({}, with_nouveau, id="nouveau is loaded"),
        pytest.param({"ecc": False}, with_pending("ecc"), id="ECC is switched"),
        pytest.param({"mig": [9]}, with_pending("mig"), id="MIG is switched"),
    ],
)
def test_what_takes_effect_by_a_boot_is_planned_as_a_reboot(
    settings: dict[str, Any], change: Callable[[Collectors], None]
) -> None:
    """Plan the reboot for a node on which everything is set, and is not in effect yet."""
    [group] = read_lock(RECORDED_LOCK).groups.values()
    stated = {name: Setting(value=value, reason="", source="") for name, value in settings.items()}
    answer = copy.deepcopy(json.loads(RECORDED_FACTS.read_text()))
    change(answer["collectors"])
    wanted = expectations(group.model_copy(update={"settings": group.settings | stated}))
    found = judge("gpu01", Facts.from_answer(answer), wanted)
    assert plan_node(found).reboot
    assert {each.role for each in found.drift if each.reboot} == {None}
