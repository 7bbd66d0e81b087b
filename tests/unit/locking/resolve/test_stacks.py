"""Stacks that vendors ship are accepted, impossible ones refused by name: each row with its source.

Of the tables that were read before a rule was made from them, `held-out.json` had 184 of 211 shipped stacks
accepted at first (87.2 %), and `later.json` 569 of 570 (99.8 %), with 35 of 38 impossible ones refused by
their cause. `latest.json` and `newest.json` hold impossible ones alone: 39 of 51 and 43 of 55 were refused or
warned of by their cause at first. Of `further.json`, read after the rules of compilers, it was 33 of 42, with
96 of 96 shipped stacks accepted; three are still `missed`. Of `wheels.json`, most of it of kinds that no rule
judged then, it was 14 of 36, with 84 of 87 shipped stacks accepted; six are still `missed`. Of `pairs.json`,
read after the limits of two parts and spread over all pairs, it was 33 of 40, with 59 of 59 shipped stacks.
Of `fresh.json` it was 29 of 41, with 140 of 151 shipped stacks: eleven of Amazon Linux 2 are `missed`.
Of `unread.json` it was 20 of 26, with 63 of 68 shipped stacks, of `unseen.json` 19 of 25, with 84 of 85, of
`untried.json` 24 of 26, with 87 of 88, of `unmet.json`, with more impossible ones, 54 of 56, with 90 of 90;
of `unheard.json` 44 of 46, with 85 of 85, of `untold.json` 46 of 47, with 60 of 60. The `about` of each says
what the others were.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpuprov.errors import InvalidInput
from gpuprov.locking.resolve import Answer
from tests import RECORDED
from tests.unit.locking.resolve.requests import A100, answer, rules

TABLE = json.loads((RECORDED / "stacks" / "stacks.json").read_text(encoding="utf-8"))
HELD_OUT = json.loads((RECORDED / "stacks" / "held-out.json").read_text(encoding="utf-8"))
LATER = json.loads((RECORDED / "stacks" / "later.json").read_text(encoding="utf-8"))
LATEST = json.loads((RECORDED / "stacks" / "latest.json").read_text(encoding="utf-8"))
NEWEST = json.loads((RECORDED / "stacks" / "newest.json").read_text(encoding="utf-8"))
FURTHER = json.loads((RECORDED / "stacks" / "further.json").read_text(encoding="utf-8"))
WHEELS = json.loads((RECORDED / "stacks" / "wheels.json").read_text(encoding="utf-8"))
PAIRS = json.loads((RECORDED / "stacks" / "pairs.json").read_text(encoding="utf-8"))
FRESH = json.loads((RECORDED / "stacks" / "fresh.json").read_text(encoding="utf-8"))
UNREAD = json.loads((RECORDED / "stacks" / "unread.json").read_text(encoding="utf-8"))
UNSEEN = json.loads((RECORDED / "stacks" / "unseen.json").read_text(encoding="utf-8"))
UNTRIED = json.loads((RECORDED / "stacks" / "untried.json").read_text(encoding="utf-8"))
UNMET = json.loads((RECORDED / "stacks" / "unmet.json").read_text(encoding="utf-8"))
UNHEARD = json.loads((RECORDED / "stacks" / "unheard.json").read_text(encoding="utf-8"))
UNTOLD = json.loads((RECORDED / "stacks" / "untold.json").read_text(encoding="utf-8"))
TABLES = (
    TABLE,
    HELD_OUT,
    LATER,
    LATEST,
    NEWEST,
    FURTHER,
    WHEELS,
    PAIRS,
    FRESH,
    UNREAD,
    UNSEEN,
    UNTRIED,
    UNMET,
    UNHEARD,
    UNTOLD,
)
MACHINES: dict[str, str] = {name: gpus for table in TABLES for name, gpus in table["machines"].items()}
REQUIRED = 0.99
"""Share of the shipped stacks that must be accepted, each toolkit of an image counted."""
OF_A_ROW = ("source", "os", "machines", "drivers", "cuda", "more_cuda", "rule", "also", "why")
KINDS = ("warned", "refused", "without_driver")
ROWS = {kind: [row for table in TABLES for row in table.get(kind, ())] for kind in KINDS}


def _stacks(row: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield machine, system and stated components of each stack of a row; one for each toolkit."""
    stated = {name: value for name, value in row.items() if name not in OF_A_ROW}
    for machine in row["machines"]:
        for driver in row["drivers"]:
            for toolkit in (row.get("cuda"), *row.get("more_cuda", ())):
                yield machine, row["os"], {**stated, "driver": driver, "cuda": toolkit}


def _answer(machine: str, os: str, stated: dict[str, Any]) -> Answer:
    return answer(MACHINES[machine], os, **stated)


def _name(row: dict[str, Any]) -> str:
    return f"{row['rule']}-{row['source'][-24:]}"


@pytest.mark.parametrize(
    ("table", "least"),
    [
        *(
            (TABLE, 400),
            (HELD_OUT, 200),
            (LATER, 560),
            (FURTHER, 90),
            (WHEELS, 80),
            (PAIRS, 59),
            (FRESH, 140),
        ),
        (UNREAD, 65),
        (UNSEEN, 85),
        (UNTRIED, 88),
        (UNMET, 90),
        (UNHEARD, 85),
        (UNTOLD, 60),
    ],
    ids=[
        *("first", "held-out", "later", "further", "wheels", "pairs", "fresh", "unread", "unseen", "untried"),
        "unmet",
        "unheard",
        "untold",
    ],
)
def test_shipped_stacks_are_accepted_with_every_toolkit(table: dict[str, Any], least: int) -> None:
    stacks = [stack for row in table["shipped"] for stack in _stacks(row)]
    refused = [stack for stack in stacks if _answer(*stack).verdict == "refused"]
    assert len(stacks) >= least
    assert len(refused) <= (1 - REQUIRED) * len(stacks), refused
    assert not refused


def test_binaries_for_an_older_gpu_of_the_same_major_are_a_warning() -> None:
    found = answer("8x B300", "ubuntu24.04", driver="580.95.05", cuda="12.8")
    assert found.verdict == "warn"
    assert "gpu-cuda-older" in rules(found.warnings)
    assert "gpu-cuda-older" not in rules(answer("8x B300", "ubuntu24.04", cuda="12.9").warnings)
    wheel = answer("8x B300", "ubuntu24.04", driver="580.95.05", framework="torch==2.9.0+cu128")
    assert "framework-gpu" in rules(wheel.warnings)
    assert "framework-gpu" not in rules(wheel.violations)


def test_a_toolkit_without_a_target_for_the_gpu_is_a_warning_that_names_its_ptx() -> None:
    found = answer("8x B200", "ubuntu24.04", driver="580.95.05", cuda="12.6")
    assert found.verdict == "warn"
    [text] = [each.text for each in found.warnings if each.rule == "gpu-cuda-ptx"]
    assert "up to that for 9.0" in text
    assert "gpu-cuda-ptx" not in rules(answer("8x B200", "ubuntu24.04", cuda="12.8").warnings)
    wheel = answer("8x B200", "ubuntu24.04", driver="580.95.05", framework="torch==2.7.0+cu126")
    assert "framework-gpu" in rules(wheel.violations)  # no PTX in it


def test_a_toolkit_without_a_target_is_not_chosen() -> None:
    stack = answer("8x B200", "ubuntu24.04", driver="580.95.05").stack
    assert str(stack.cuda).startswith("13.0")


def test_a_compat_package_on_a_branch_that_ended_is_a_warning_from_the_release_that_was_named() -> None:
    found = answer(A100, "ubuntu22.04", driver="470.57.02", cuda="12.1.1")
    assert found.stack.compat == "12.1"
    assert {"cuda-forward-compat", "forward-compat-ended"} <= rules(found.warnings)
    for older in ({"driver": "470.42.01"}, {"driver": "470.57.02", "compat": "none"}):
        refused = answer(A100, "ubuntu22.04", **{"cuda": "12.1.1", **older})
        assert rules(refused.violations) == {"cuda-driver"}
    stated = answer(A100, "ubuntu22.04", driver="470.57.02", cuda="12.1.1", compat="12.1")
    assert "forward-compat-branch" not in rules(stated.violations)


def test_a_beginning_of_a_version_becomes_a_preview_if_only_that_is_native() -> None:
    assert str(answer(A100, "ubuntu18.04", driver="450.36.06", cuda="11.0").stack.cuda) == "11.0.1"
    assert str(answer(A100, "ubuntu18.04", driver="450.51.06", cuda="11.0").stack.cuda) == "11.0.3"
    assert str(answer(A100, "ubuntu18.04", driver="450.80.02", cuda="11.0").stack.cuda) == "11.0.3"


def test_jax_of_cuda_12_has_code_for_the_first_maxwell_since_its_builds_list_it() -> None:
    """Check that a GPU of 5.0 is refused by builds from 5.2, and a warning with those that hold its code."""
    older, newer = (
        answer("GeForce GTX 750", "ubuntu22.04", driver="580.95.05", framework=f"jax[cuda12]=={release}")
        for release in ("0.5.2", "0.7.2")
    )
    assert "framework-gpu" in rules(older.violations)
    assert "framework-gpu" in rules(newer.warnings)
    assert "framework-gpu" not in rules(newer.violations)


@pytest.mark.parametrize(
    ("release", "needed"),
    [("0.4.34", {"9.0.0": True, "9.1.0": False}), ("0.6.1", {"9.5.1": True, "9.8.0": False})],
)
def test_jax_with_the_hosts_libraries_asks_for_the_cudnn_of_its_release(
    release: str, needed: dict[str, bool]
) -> None:
    warned = {
        cudnn: "framework-toolkit"
        in rules(
            answer(
                A100,
                "ubuntu22.04",
                driver="570.133.20",
                cudnn=cudnn,
                framework=f"jax[cuda12-local]=={release}",
            ).warnings
        )
        for cudnn in needed
    }
    assert warned == needed


def test_the_first_wheels_of_torch_have_no_code_for_fermi_whatever_cuda_they_bring() -> None:
    found, cpu, kepler = (
        answer(gpu, "ubuntu18.04", driver="390.157", framework=f"torch=={release}")
        for gpu, release in (("Tesla M2090", "0.3.1"), ("Tesla M2090", "0.3.1+cpu"), ("Tesla K40m", "1.2"))
    )
    assert "framework-gpu" in rules(found.violations)
    assert not {"framework-gpu"} & (rules(cpu.violations) | rules(kepler.violations))


def test_a_compat_package_goes_on_each_branch_that_the_containers_notes_name() -> None:
    stated = answer("8x H100 SXM5 80GB", "ubuntu20.04", driver="525.105.17", cuda="12.1.0", compat="12.1")
    assert rules(stated.violations) == set()
    assert "forward-compat-ended" in rules(stated.warnings)
    [other] = [
        each
        for each in answer(A100, "ubuntu20.04", driver="460.91.03", cuda="12.1.0", compat="12.1").violations
        if each.rule == "forward-compat-branch"
    ]
    assert "branches of which none is left, not on 460" in other.text


def test_wheels_of_torch_2_6_need_a_newer_glibc_with_cuda_12_6_alone() -> None:
    warned = {
        build: "framework-glibc"
        in rules(answer(A100, "centos7", driver="550.54.15", framework=f"torch==2.6.0+{build}").warnings)
        for build in ("cu118", "cu124", "cu126")
    }
    assert warned == {"cu118": False, "cu124": False, "cu126": True}


@pytest.mark.parametrize(
    ("os", "nearest"),
    [("ubuntu25.10", {"ubuntu26.04", "ubuntu24.04"}), ("fedora45", {"fedora44", "fedora43"})],
)
def test_a_system_that_is_not_served_names_the_nearest_that_are(os: str, nearest: set[str]) -> None:
    found = answer(A100, os, driver="580.95.05")
    assert rules(found.violations) == {"os-served"}
    assert {each.value for each in found.nearest[:2]} == nearest


@pytest.mark.parametrize("row", ROWS["warned"], ids=_name)
def test_stacks_within_limits_are_warned_of_by_name(row: dict[str, Any]) -> None:
    for stack in _stacks(row):
        found = _answer(*stack)
        assert found.verdict == "warn", (stack, found.violations)
        assert row["rule"] in rules(found.warnings), (stack, found.warnings)


@pytest.mark.parametrize("row", ROWS["without_driver"], ids=_name)
def test_gpus_without_a_driver_in_any_repository_are_refused_when_they_are_read(row: dict[str, Any]) -> None:
    for stack in _stacks(row):
        with pytest.raises(InvalidInput, match=row["rule"]):
            _answer(*stack)


@pytest.mark.parametrize("row", ROWS["refused"], ids=_name)
def test_impossible_stacks_are_refused_by_name(row: dict[str, Any]) -> None:
    for stack in _stacks(row):
        found = _answer(*stack)
        assert row["rule"] in rules(found.violations), (stack, found.violations)
        assert row.get("also") in {None, *rules(found.warnings)}, (stack, found.warnings)
