"""Profilers, a GPU's counters, and what a node tells Prometheus."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from gpuprov.expectations.observing import DCGM_UNIT, EXPORTER_UNIT
from gpuprov.verify.nodes import NodeUnderTest
from gpuprov.verify.readings import unit_state

if TYPE_CHECKING:
    from gpuprov.verify.modules import Node

OPTIONS = "modprobe --showconfig | grep RestrictProfilingToAdminUsers"
WHO = {"0": "everybody", "1": "root", None: "root"}


@pytest.mark.check("profiling.packages")
def test_profilers_are_the_locked_ones(host: Node, expected: dict[str, str]) -> None:
    assert {name: host.apt.versions.get(name) for name in expected} == expected


@pytest.mark.check("profiling.counters", OPTIONS)
def test_counters_are_for_whom_the_lock_says(host: Node, expected: str) -> None:
    values = set(re.findall(r"^options nvidia\S* .*AdminUsers=(\d)", host.run(OPTIONS).stdout, re.MULTILINE))
    assert " and ".join(sorted(WHO[value] for value in values or {None})) == expected


@pytest.mark.check("profiling.counters_now", "cat /proc/driver/nvidia/params")
def test_loaded_driver_gives_them_so(host: Node, expected: str) -> None:
    found = re.search(r"RmProfilingAdminOnly: (\d)", host.run("cat /proc/driver/nvidia/params").stdout)
    assert WHO.get(found and found[1]) == expected


@pytest.mark.check("monitoring.packages")
def test_exporter_is_the_locked_one(host: Node, expected: dict[str, str]) -> None:
    assert {name: host.apt.versions.get(name) for name in expected} == expected


@pytest.mark.check("monitoring.exporter", f"journalctl -u {EXPORTER_UNIT} -n 10 --no-pager")
def test_exporter_runs_now_and_at_every_boot(host: Node, expected: str) -> None:
    assert unit_state(host, EXPORTER_UNIT) == expected


@pytest.mark.check("monitoring.dcgm_packages")
def test_dcgm_is_the_locked_one(host: Node, expected: dict[str, str]) -> None:
    assert {name: host.apt.versions.get(name) for name in expected} == expected


@pytest.mark.check("monitoring.dcgm", f"journalctl -u {DCGM_UNIT} -n 10 --no-pager", "dcgmi discovery -l")
def test_dcgm_runs_now_and_at_every_boot(host: Node, expected: str) -> None:
    assert unit_state(host, DCGM_UNIT) == expected


@pytest.mark.check("monitoring.textfile")
def test_prometheus_is_told_what_is_expected(node: NodeUnderTest, expected: str) -> None:
    path = str(node.wanted["monitoring.textfile"].subject)
    said = node.host.run("sha256sum %s", path).stdout
    assert (said.split() or [None])[0] == expected
