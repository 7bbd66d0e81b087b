"""Recorded facts of a real provisioned node compared with its lock, and single contradictions."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprov.drift.judge import Difference, NodeDrift, exit_code, judge, without_facts
from gpuprov.drift.observations import repositories
from gpuprov.errors import Exit, NodeFailed, Unreachable
from gpuprov.model.lock import LockedGroup, Setting, read_lock
from gpuprov.probe.facts import Facts
from gpuprov.roles import expectations
from tests import RECORDED_FACTS, RECORDED_LOCK


@pytest.fixture(scope="module")
def group() -> LockedGroup:
    [group] = read_lock(RECORDED_LOCK).groups.values()
    return group


@pytest.fixture
def answer() -> dict[str, Any]:
    """Return the recorded facts of a real node, to be changed."""
    document: dict[str, Any] = json.loads((RECORDED_FACTS).read_text())
    return copy.deepcopy(document)


def found(answer: dict[str, Any], group: LockedGroup) -> dict[str, Difference]:
    """Return check → difference of an answer from its lock."""
    return {each.check: each for each in judge("node1", Facts.from_answer(answer), expectations(group)).drift}


def test_a_node_as_the_lock_says_is_in_sync(answer: dict[str, Any], group: LockedGroup) -> None:
    assert judge("node1", Facts.from_answer(answer), expectations(group)) == NodeDrift("node1", "in_sync")


def test_of_a_mapping_only_what_differs_is_reported(answer: dict[str, Any], group: LockedGroup) -> None:
    packages = answer["collectors"]["packages"]
    row = next(line for line in packages["text"].splitlines() if line.startswith("nvidia-smi\t"))
    packages["text"] = packages["text"].replace(row, row.replace("535.309.01", "535.261.03"))
    different = found(answer, group)["driver.packages"]
    assert different.expected == {"nvidia-smi": "535.309.01-0+deb12u1"}
    assert set(different.actual) == {"nvidia-smi"}
    assert (different.role, different.reboot, different.severity) == ("nvidia_driver", False, "error")


def test_a_silent_driver_asks_for_a_reboot_and_not_for_a_role(
    answer: dict[str, Any], group: LockedGroup
) -> None:
    said = "Failed to initialize NVML: Driver/library version mismatch"
    answer["collectors"]["smi"] = {"rc": 18, "stdout": said, "stderr": ""}
    different = found(answer, group)
    assert different["driver.answers"].actual == said
    clocks = different["gpu.clocks"]
    assert (clocks.actual, clocks.role, clocks.reboot) == (f"unknown: {said}", None, True)


def test_what_a_node_does_not_tell_differs(answer: dict[str, Any], group: LockedGroup) -> None:
    answer["collectors"]["packages"] = {"error": "no answer in 20 s"}
    assert found(answer, group)["pins.hold"].actual == "unknown: no answer in 20 s"


def test_failed_beats_unreachable_beats_drift() -> None:
    lost = without_facts("a", Unreachable("no route"))
    broken = without_facts("b", NodeFailed("no Python 3 on the node"))
    drifted, fine = NodeDrift("c", "drifted"), NodeDrift("d", "in_sync")
    assert exit_code([fine]) == Exit.OK
    assert exit_code([fine, drifted]) == Exit.DRIFT
    assert exit_code([fine, drifted, lost]) == Exit.UNREACHABLE
    assert exit_code([fine, drifted, lost, broken]) == Exit.FAILED


def test_a_gpu_that_the_driver_has_and_the_bus_has_not_is_seen(
    answer: dict[str, Any], group: LockedGroup
) -> None:
    answer["collectors"]["pci"] = [row for row in answer["collectors"]["pci"] if row[0] != "0000:47:00.0"]
    different = found(answer, group)
    assert different["gpu.count"].actual == 3
    assert different["gpu.visible"].actual == "4, but driver and bus disagree on 0000:47:00.0"


def test_a_value_that_is_unknown_while_the_driver_answers_is_left_to_the_role(
    answer: dict[str, Any], group: LockedGroup
) -> None:
    """Plan no reboot for it: a reboot helps only if the driver does not answer."""
    settings = group.settings | {"mig": Setting(value=[9], reason="", source="")}
    answer["collectors"]["mig"] = {"error": "no answer in 5 s"}
    layout = found(answer, group.model_copy(update={"settings": settings}))["gpu.mig_layout"]
    assert (layout.actual, layout.role, layout.reboot) == (
        "unknown: no answer in 5 s",
        "gpu_settings",
        False,
    )


@pytest.mark.parametrize(("watts", "seen"), [(99, "100 to 400 on GPU 0, 1, 2, 3"), (100, None), (400, None)])
def test_a_power_limit_that_no_gpu_allows_is_left_to_no_role(
    answer: dict[str, Any], group: LockedGroup, watts: int, seen: str | None
) -> None:
    settings = group.settings | {"power_limit": Setting(value=watts, reason="", source="")}
    different = found(answer, group.model_copy(update={"settings": settings})).get("gpu.power_range")
    assert (different and different.actual) == seen
    assert different is None or (different.role, different.reboot) == (None, False)


@pytest.mark.parametrize("actual", [10**4400, {"a": [[[[1]]]] * 2, "b": 1 << 65}], ids=["alone", "inside"])
def test_a_difference_has_a_value_that_can_be_printed(actual: Any) -> None:
    found = Difference("tuning.limits", 1, actual, "warning", None, False)
    assert found.actual.startswith("a value that cannot be printed: a whole number of")


def test_sources_that_apt_cannot_read_are_unknown(answer: dict[str, Any], group: LockedGroup) -> None:
    answer["collectors"]["candidates"] = {"error": "E: Conflicting values set for option Trusted"}
    different = found(answer, group)
    unknown = {name for name, each in different.items() if "Conflicting values" in str(each.actual)}
    assert unknown == {"pins.candidates", "repositories.foreign"}


def test_without_apt_no_apt_has_to_read_sources() -> None:
    without = SimpleNamespace(collectors={"candidates": {}}, packages=SimpleNamespace(manager="rpm"))
    repositories._require_readable(without)  # type: ignore[arg-type]
