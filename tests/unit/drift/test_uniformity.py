"""Outliers among nodes for which there is no description."""

from __future__ import annotations

import copy
import gc
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

import pytest

from gpuprov.drift.judge import NodeDrift
from gpuprov.drift.majority import NO_MAJORITY, aspects_of, majority
from gpuprov.history.record import of_majority
from gpuprov.probe.facts import Facts
from tests import H200

Collectors = dict[str, Any]


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    """Return the recorded facts of a node with H200, to be changed."""
    document: dict[str, Any] = json.loads((H200 / "facts.json").read_text())
    document["collectors"]["smi"] = {"rc": 0, "stdout": (H200 / "q.xml").read_text(), "stderr": ""}
    return document


def compared(nodes: Mapping[str, Facts]) -> list[NodeDrift]:
    """Compare nodes by their facts."""
    return majority({name: aspects_of(name, facts) for name, facts in nodes.items()})


def changed(answer: dict[str, Any], change: Callable[[Collectors], None]) -> Facts:
    """Return the facts of an answer with a change of its collectors."""
    other = copy.deepcopy(answer)
    change(other["collectors"])
    return Facts.from_answer(other)


def with_other_cudnn(collectors: Collectors) -> None:
    """Install another version of cuDNN."""
    collectors["packages"]["text"] = collectors["packages"]["text"].replace("9.14.0.64-1", "9.10.1.4-1")


def without_persistence(collectors: Collectors) -> None:
    """Turn persistence mode off on the first GPU."""
    smi = collectors["smi"]
    smi["stdout"] = smi["stdout"].replace("<persistence_mode>Enabled", "<persistence_mode>Disabled", 1)


def with_a_dead_driver(collectors: Collectors) -> None:
    """Make nvidia-smi find no device."""
    collectors["smi"] = {"rc": 9, "stdout": "No devices were found\n", "stderr": ""}


def test_nodes_that_are_alike_are_in_sync(answer: dict[str, Any]) -> None:
    alike = {f"gpu{number}": Facts.from_answer(answer) for number in range(3)}
    assert [(node.name, node.status) for node in compared(alike)] == [
        ("gpu0", "in_sync"),
        ("gpu1", "in_sync"),
        ("gpu2", "in_sync"),
    ]


def test_the_odd_one_is_reported_by_what_is_odd(answer: dict[str, Any]) -> None:
    nodes = {name: Facts.from_answer(answer) for name in ("a", "b", "c")}
    nodes["odd"] = changed(answer, with_other_cudnn)
    *alike, odd = compared(nodes)
    assert {node.status for node in alike} == {"in_sync"}
    [difference] = odd.drift
    assert difference.check == "packages"
    assert set(difference.expected.values()) == {"9.14.0.64-1"}
    assert set(difference.actual.values()) == {"9.10.1.4-1"}
    assert (difference.severity, difference.role) == ("warning", None)


def test_a_single_gpu_makes_a_node_odd(answer: dict[str, Any]) -> None:
    nodes = {name: Facts.from_answer(answer) for name in ("a", "b")}
    nodes["odd"] = changed(answer, without_persistence)
    [difference] = compared(nodes)[-1].drift
    assert (difference.check, difference.expected) == ("gpu.persistence", "True")
    assert difference.actual == "False on 1 GPUs, True on 3 GPUs"


def test_a_node_that_cannot_tell_is_odd_in_what_it_does_not_tell(answer: dict[str, Any]) -> None:
    nodes = {name: Facts.from_answer(answer) for name in ("a", "b")}
    nodes["odd"] = changed(answer, with_a_dead_driver)
    found = {each.check: each.actual for each in compared(nodes)[-1].drift}
    assert found["driver.answers"] == "No devices were found"
    assert found["gpu.ecc"] == "unknown: No devices were found"


def test_half_and_half_is_no_majority(answer: dict[str, Any]) -> None:
    nodes = {"a": Facts.from_answer(answer), "b": changed(answer, with_other_cudnn)}
    for node in compared(nodes):
        [difference] = node.drift
        assert set(difference.expected.values()) == {NO_MAJORITY}


def test_what_is_kept_of_a_node_is_limited() -> None:
    """Limit what is kept of each node: each decides how much text its facts have."""
    many = {f"key{number}": "x" * 20 for number in range(20_000)}
    long = {"key": "x" * 900_000}
    for wild in (many, long):
        found = aspects_of("n", Facts("n", "", 0.0, {"daemon_json": {"value": wild}}))
        assert isinstance(found, dict)
        assert sum(len(key) + len(value) for (_, key), value in found.items()) < 10_000


def test_nodes_with_the_same_values_agree_also_in_too_many_of_them() -> None:
    many = {f"key{number}": 1 for number in range(20_000)}
    facts = {
        name: Facts(name, "", 0.0, {"daemon_json": {"value": value}})
        for name, value in {"a": many, "b": many, "odd": many | {"key7": 2}}.items()
    }
    a, b, odd = compared(facts)
    assert (a.status, b.status) == ("in_sync", "in_sync")
    [difference] = odd.drift
    assert str(difference.expected).startswith("20000 values with ")
    assert difference.expected != difference.actual


def test_facts_are_not_kept_for_the_comparison() -> None:
    facts: WeakValueDictionary[str, Facts] = WeakValueDictionary()

    def answers() -> Iterator[tuple[str, Facts]]:
        for name in "abcd":
            gc.collect()
            assert len(facts) <= 1
            facts[name] = made = Facts(name, "", 0.0, {})
            yield name, made
            del made

    found = of_majority(dict.fromkeys("abcd", "all"), answers(), "")
    assert [node.status for node in found.nodes] == ["in_sync"] * 4
