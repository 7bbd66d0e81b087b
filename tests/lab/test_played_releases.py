"""Nodes that play further releases with dnf by the command line: from bootstrap to a rollback.

The tests build on each other; `tests/lab/test_rhel_9_chain.py` has more of them on RHEL 9. What such nodes do
not show is in docs/proof.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpuprov_lab import Lab
from gpuprov_lab.releases import BY_SYSTEM
from tests.lab.dnf_chain import STACK, Chain, new_chain
from tests.systems import OF_DNF

pytestmark = pytest.mark.slow
DRIVERS = ("580.126.16", "595.71.05")
"""The driver before and after the upgrade."""
LACKING = ("podman", "node_exporter")
STACKS: dict[str, dict[str, Any]] = {
    "rhel8": {**STACK, "podman": "4.9"},
    "rhel10": {**STACK, "podman": "5.6"},
    "amzn2023": {
        **{name: version for name, version in STACK.items() if name not in LACKING},
        "docker": "25.0",
        "containerd": "auto",
    },
}
"""System → components of its fleet; Amazon's repository lacks some."""


def test_each_further_release_has_a_stack() -> None:
    assert set(STACKS) == {*OF_DNF} - {"rhel9"}


@pytest.fixture(scope="module", params=STACKS)
def chain(
    request: pytest.FixtureRequest, module_lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Chain]:
    """A node of each system and a fleet with a mirror; not locked."""
    with new_chain(
        module_lab, tmp_path_factory.mktemp("played"), request.param, STACKS[request.param]
    ) as chain:
        yield chain


def driver(chain: Chain, version: str) -> str:
    """Return the version of the driver's packages for the system of a chain."""
    return f"3:{version}-1.{BY_SYSTEM[chain.node.os].dist.split('.')[0]}"


def test_a_fresh_node_gets_everything_and_a_second_run_changes_nothing(chain: Chain) -> None:
    assert chain.node.run("command -v apt-get apt dpkg dpkg-query", check=False).stdout == ""
    assert chain.node.kernel == BY_SYSTEM[chain.node.os].kernel
    chain.state()
    chain.gpuprov("bootstrap")
    plan = chain.gpuprov("plan", code=3)
    assert "ssh_hardening, firewall" in plan.stdout
    applied = chain.gpuprov("apply", "--reboot", "--yes", code=None)
    assert "rebooted  verified" in applied.stdout, applied.stdout + applied.stderr
    assert chain.installed("nvidia-driver-cuda") == driver(chain, DRIVERS[0])
    assert chain.drift() == chain.failed() == {}
    assert "nothing to do" in chain.gpuprov("apply", "--yes").stderr
    changed = chain.gpuprov("apply", "--full", "--yes", "-o", "json")
    assert json.loads(changed.stdout)["nodes"][0]["changed"] == 0, changed.stderr


def test_an_upgrade_whose_controller_dies_is_resumed_and_rolled_back(chain: Chain) -> None:
    """Kill the upgrade in its apply; then roll back with every repository out of reach."""
    chain.state("next.lock.yml", driver=DRIVERS[1])
    chain.resume_killed_upgrade("next.lock.yml")
    assert chain.installed("nvidia-driver-cuda") == driver(chain, DRIVERS[1])
    assert chain.failed() == {}
    chain.forget_packages()
    chain.roll_back()
    assert chain.installed("nvidia-driver-cuda") == driver(chain, DRIVERS[0])
    assert chain.drift() == chain.failed() == {}
