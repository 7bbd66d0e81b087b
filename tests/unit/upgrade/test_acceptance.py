"""Test of a node's GPUs under load before it returns to service, if the rollout requires it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply.context import Options
from gpuprov.errors import NodeFailed
from gpuprov.model.lock import Lock, read_lock
from gpuprov.model.rollout import Rollout
from gpuprov.upgrade import acceptance, steps
from gpuprov.upgrade.context import UpgradeContext
from tests import RECORDED_LOCK
from tests.unit.accept.recorded import recorded

ASKED: list[Any] = []


def fleet(rollout: Rollout | None) -> Lock:
    """Return a lock with three nodes and this rollout."""
    lock = read_lock(RECORDED_LOCK)
    [(name, group)] = lock.groups.items()
    hosts = {"sound": "10.0.0.1", "slow": "10.0.0.2", "lost": "10.0.0.3"}
    return lock.model_copy(
        update={"rollout": rollout, "groups": {name: group.model_copy(update={"hosts": hosts})}}
    )


def context(lock: Lock, folder: Path) -> UpgradeContext:
    """Return the context of an upgrade of a lock to itself."""
    return UpgradeContext(lock=lock, folder=folder, options=Options(), old=lock, source=folder)


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the measurements: one node is sound, one slow, one gives no answer."""
    answers = {
        "sound": recorded("quick"),
        "slow": recorded("pcie-saturated"),
        "lost": NodeFailed("no answer within 300 s of running a command"),
    }

    def measure(nodes: Any, level: str, **others: Any) -> Iterator[tuple[str, Any]]:
        ASKED.append((level, others["drained"]))
        yield from ((node.name, answers[node.name]) for node in nodes)

    ASKED.clear()
    monkeypatch.setattr(acceptance, "measure_there", measure)


def test_nothing_is_loaded_where_nobody_asks_for_it(tmp_path: Path) -> None:
    for rollout in (None, Rollout()):
        assert acceptance.accepted(context(fleet(rollout), tmp_path), ["slow"], tmp_path) == {}
    assert acceptance.accepted(context(fleet(Rollout(accept="quick")), tmp_path), [], tmp_path) == {}
    assert ASKED == []


def test_a_node_that_is_slow_or_lost_under_load_has_failed(tmp_path: Path) -> None:
    failed = acceptance.accepted(
        context(fleet(Rollout(accept="quick")), tmp_path), ["sound", "slow", "lost"], tmp_path
    )
    assert ASKED == [("quick", True)]
    assert set(failed) == {"slow", "lost"}
    assert failed["slow"].startswith("accept: GPU 0 h2d: 27.1 GB/s")
    assert failed["slow"].endswith(" and 4 more")
    assert failed["lost"] == "accept: no answer within 300 s of running a command"
    kept = json.loads((tmp_path / "accept.json").read_text())
    assert [node["verdict"] for node in kept["nodes"]] == ["accepted", "rejected", "failed"]


def test_only_nodes_that_verification_passed_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "_judged", lambda *arguments: {"lost": "driver.version failed"})
    failed = steps.verify(context(fleet(Rollout(accept="quick")), tmp_path), ["slow", "lost"], tmp_path)
    assert failed["lost"] == "driver.version failed"
    assert failed["slow"].startswith("accept: ")
