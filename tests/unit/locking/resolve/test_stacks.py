"""Stacks that vendors ship are accepted, impossible ones refused by name, each from a source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpuprov.locking.resolve import Answer
from tests import RECORDED
from tests.unit.locking.resolve.requests import answer, rules

TABLE = json.loads((RECORDED / "stacks" / "stacks.json").read_text(encoding="utf-8"))
REQUIRED = 0.99
"""Share of the shipped stacks that must be accepted."""
TOO_OLD = {("p6e-gb200", "12.6"), ("p6e-gb300", "12.6")}
"""Toolkits of an image for several machines that do not know one of them: only its PTX would run there."""


def _stacks(kind: str, cuda: str = "cuda") -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield machine, system and stated components of each stack of a kind; one for each toolkit."""
    for row in TABLE[kind]:
        stated = {
            name: value
            for name, value in row.items()
            if name not in ("source", "os", "machines", "drivers", "cuda", "more_cuda", "rule")
        }
        toolkits = row.get(cuda, []) if cuda == "more_cuda" else [row.get("cuda")]
        for machine in row["machines"]:
            for driver in row["drivers"]:
                for toolkit in toolkits:
                    yield machine, row["os"], {**stated, "driver": driver, "cuda": toolkit}


def _answer(machine: str, os: str, stated: dict[str, Any]) -> Answer:
    return answer(TABLE["machines"][machine], os, **stated)


def test_shipped_stacks_are_accepted() -> None:
    stacks = list(_stacks("shipped"))
    refused = [stack for stack in stacks if _answer(*stack).verdict == "refused"]
    assert len(stacks) >= 200
    assert len(refused) <= (1 - REQUIRED) * len(stacks), refused
    assert not refused


def test_further_toolkits_of_an_image_are_accepted_where_they_know_the_gpu() -> None:
    for machine, os, stated in _stacks("shipped", "more_cuda"):
        found = _answer(machine, os, stated)
        if (machine, stated["cuda"]) in TOO_OLD:
            assert rules(found.violations) == {"gpu-cuda"}
        else:
            assert found.verdict != "refused", (machine, os, stated, found.violations)


def test_binaries_for_an_older_gpu_of_the_same_major_are_a_warning() -> None:
    found = answer("8x B300", "ubuntu24.04", driver="580.95.05", cuda="12.8")
    assert found.verdict == "warn"
    assert "gpu-cuda-older" in rules(found.warnings)
    assert "gpu-cuda-older" not in rules(answer("8x B300", "ubuntu24.04", cuda="12.9").warnings)
    assert rules(answer("8x B200", "ubuntu24.04", driver="580.95.05", cuda="12.6").violations) == {"gpu-cuda"}


@pytest.mark.parametrize("row", TABLE["refused"], ids=lambda row: f"{row['rule']}-{row['source'][-24:]}")
def test_impossible_stacks_are_refused_by_name(row: dict[str, Any]) -> None:
    stated = {
        name: value
        for name, value in row.items()
        if name not in ("source", "os", "machines", "drivers", "more_cuda", "rule")
    }
    for machine in row["machines"]:
        for driver in row["drivers"]:
            found = _answer(machine, row["os"], {**stated, "driver": driver})
            assert row["rule"] in rules(found.violations), (machine, driver, found.violations)
