"""Fleet that `init --local` writes for the local machine, and the search for its node in a lock."""

from __future__ import annotations

import os
from typing import Any

import pytest

from gpuprov.catalog import load
from gpuprov.drift.judge import judge
from gpuprov.errors import InvalidInput, Refused
from gpuprov.inventory.discover import fleet_here, kinds
from gpuprov.model.documents import render_plain
from gpuprov.model.here import as_stated, the_node, with_here
from gpuprov.model.lock import read_lock
from gpuprov.roles.hardware import server as expectations
from tests import RECORDED_LOCK
from tests.unit.inventory.conftest import MakeLock
from tests.unit.inventory.test_discover import drop_gpu, one_dimm_less, simulated, slow_port


def written(machine: str, *changes: Any) -> dict[str, Any]:
    """Return the keys of a fleet for this machine, simulated with changes."""

    def change(raw: dict[str, Any]) -> None:
        for each in changes:
            each(raw)

    document, _ = fleet_here(simulated(machine, change, "gpu01.example.org"), kinds(load()), load())
    return document


@pytest.fixture(autouse=True)
def _nobody_s_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variable in which sudo names its user."""
    monkeypatch.delenv("SUDO_USER", raising=False)


def test_a_machine_as_a_profile_has_it() -> None:
    assert written("h100x8") == {
        "groups": {"hgx-h100-8": {"profile": "hgx-h100-8", "os": "ubuntu24.04", "hosts": {"gpu01": "local"}}}
    }


def test_who_logs_in_is_who_called_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ubuntu")
    assert written("t4x1")["ssh"] == {"user": "ubuntu"}


@pytest.mark.parametrize("changes", [(drop_gpu,), (slow_port,), (one_dimm_less,), (drop_gpu, slow_port)])
def test_a_machine_with_less_than_its_profile_gets_a_fleet_that_it_fits(
    changes: tuple[Any, ...], locked: MakeLock
) -> None:
    document = written("h100x8", *changes)
    [group] = document["groups"].values()
    assert group["hardware"].get("gpu", {}).get("count", 8) == (7 if drop_gpu in changes else 8)
    assert group["hardware"]
    group["hosts"] = "n1"
    lock = locked(render_plain(document))
    [stated] = lock.groups.values()

    def change(raw: dict[str, Any]) -> None:
        for each in changes:
            each(raw)

    found = judge("n1", simulated("h100x8", change), expectations(stated))
    assert found.status == "in_sync", found


def test_without_a_profile_its_own_gpus_are_stated() -> None:
    document, nearest = fleet_here(simulated("t4x1"), [], load())
    assert nearest.profile is None
    assert document["groups"]["gpu"]["profile"] == "base"
    assert document["groups"]["gpu"]["hardware"]["gpu"]["count"] == 1


def test_without_a_gpu_it_is_refused() -> None:
    with pytest.raises(Refused, match="no NVIDIA GPU on its PCI bus; gpuprov doctor --local"):
        written("t4x1", lambda raw: raw.update(pci=[]))


def test_which_node_of_a_lock_this_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = read_lock(RECORDED_LOCK)
    [(name, group)] = recorded.groups.items()
    hosts = {"gpu01": "192.0.2.1", "gpu02": "192.0.2.2"}
    lock = recorded.model_copy(update={"groups": {name: group.model_copy(update={"hosts": hosts})}})
    assert the_node(lock, ["gpu02"], stated=True) == "gpu02"
    assert the_node(with_here(lock, "gpu01"), list(hosts), stated=False) == "gpu01"
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("", "gpu02.example.org", "", "", "")))
    assert the_node(lock, list(hosts), stated=False) == "gpu02"
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("", "laptop", "", "", "")))
    with pytest.raises(InvalidInput, match="this machine is one node, not 2"):
        the_node(lock, list(hosts), stated=False)
    here = with_here(lock, "gpu01")
    assert here.hosts()["gpu01"].hosts == {"gpu01": "local", "gpu02": "192.0.2.2"}
    assert as_stated(here, lock) == lock, "what an upgrade leaves behind goes into the fleet's own file"
    assert as_stated(here, here) == here, "where the fleet itself says so it stays"
