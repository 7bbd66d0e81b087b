"""Collectors that drift requests: exactly those that its expectations need."""

from __future__ import annotations

import importlib
import json
from contextlib import suppress
from typing import Any

import pytest

from gpuprov.drift.observations import OBSERVERS
from gpuprov.drift.observations.registry import READS, collectors_for
from gpuprov.drift.probe_request import drift_parameters
from gpuprov.model.lock import read_lock
from gpuprov.probe.facts import Facts, Missing
from gpuprov.probe.node.base import COLLECTORS
from gpuprov.probe.payload import PROBE
from gpuprov.roles import Expectation, expectations
from gpuprov.roles.gpu_settings import CLOCKS_UNIT, PERSISTENCE_UNIT
from tests import H200, RECORDED

NODE = RECORDED / "verify/debian12-a100x4"
UNRECORDED: dict[str, Any] = {
    "boot_sysctls": [],
    "containerd": {"dump": ""},
    "firewall": {"text": ""},
    "hugepages": {"transparent": "always [madvise] never"},
    "listening": {"sshd": ["22"], "systemd": []},
    "mig": {"text": ""},
    "nics": [],
    "podman": {"options": [], "places": []},
    "scratch": {},
    "toolkit": {"config": "", "default": "", "cdi": {}},
    "undone": {"text": None},
    "variables": {"logins": {}, "services": {}, "users": {}, "nvcc": [None, None]},
}
EXPECTED = ({}, [], "text", 1)
"""Expected values; every observer accepts one of them."""


class Watched(Facts):
    """Facts that remember which collectors' values were read."""

    def raw(self, collector: str) -> Any:
        """Record the collector, then return its raw value."""
        self.__dict__.setdefault("read", set()).add(collector)
        return super().raw(collector)


def whole_answer() -> dict[str, Any]:
    """Return the values of all collectors: those of the first recording, the missing ones from a second."""
    here = json.loads(NODE.with_suffix(".facts.json").read_text())
    there = json.loads((H200 / "facts.json").read_text())
    return {**here, "collectors": {**there["collectors"], **here["collectors"], **UNRECORDED}}


def reads_of(check: str) -> set[str]:
    """Return the collectors that the check's observer reads on a node with all values."""
    answer = whole_answer()
    read: set[str] = set()
    for expected in EXPECTED:
        facts = Watched.from_answer(answer)
        with suppress(AttributeError, KeyError, Missing, TypeError, ValueError):
            OBSERVERS[check](facts, Expectation(check, expected, None, subject="running"))
        read |= facts.__dict__.get("read", set())
    return read


@pytest.mark.parametrize("check", sorted(OBSERVERS))
def test_a_check_names_the_collectors_that_it_reads(check: str) -> None:
    assert reads_of(check) == set(READS[check])


def test_every_collector_named_is_one() -> None:
    for module in PROBE[:-1]:  # the last one starts the probe
        importlib.import_module(module)  # registers its collectors
    assert {name for names in READS.values() for name in names} <= COLLECTORS.keys()


def test_of_a_lock_with_a_driver_alone_neither_ports_nor_a_firewall_are_asked() -> None:
    [group] = read_lock(NODE.with_suffix(".lock.yml")).groups.values()
    question = drift_parameters(group)
    asked = set(question.collectors)
    assert {"system", "packages", "smi", "disk_modules"} <= asked
    assert not {"listening", "firewall", "gpu_use", "mounts"} & asked
    assert set(question.units) == {PERSISTENCE_UNIT, CLOCKS_UNIT}


def test_what_needs_the_driver_asks_whether_it_answers() -> None:
    assert "smi" in collectors_for([Expectation("profiling.counters_now", "root", None, needs_driver=True)])


def test_facts_of_drifts_question_are_judged_as_all_facts() -> None:
    [group] = read_lock(NODE.with_suffix(".lock.yml")).groups.values()
    answer = whole_answer()
    whole = Facts.from_answer(answer)
    # This recording is older than the collector `holding`, which answers no expectation.
    asked = set(drift_parameters(group).collectors) - {"holding"}
    few = {name: answer["collectors"][name] for name in asked}
    part = Facts.from_answer({**answer, "collectors": few})
    for each in expectations(group):
        assert OBSERVERS[each.check](part, each) == OBSERVERS[each.check](whole, each)
