"""Who builds the new module before anything is drained, and what becomes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply.modules.build import build_of
from gpuprov.apply.modules.once import Need
from gpuprov.apply.modules.store import Store, pack
from gpuprov.errors import NodeFailed
from gpuprov.lab.simulator import stub_module
from gpuprov.model.lock import read_lock
from gpuprov.upgrade import building
from gpuprov.upgrade.building import Ahead
from gpuprov.upgrade.context import UpgradeContext
from tests import RECORDED_LOCK

NAMES, KERNEL = ["a1", "a2", "a3"], "6.1.0-56-amd64"


def context(folder: Path, build: str | None, **more: str) -> UpgradeContext:
    lock = read_lock(RECORDED_LOCK)
    [(name, group)] = lock.groups.items()
    driver = group.components.driver.model_copy(update={"build": build, **more})
    components = group.components.model_copy(update={"driver": driver})
    mine = {"hosts": dict.fromkeys(NAMES, "127.0.0.1"), "components": components}
    stated = lock.model_copy(update={"groups": {name: group.model_copy(update=mine)}})
    return UpgradeContext(stated, folder, old=stated, source=folder)


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UpgradeContext:
    asked = context(tmp_path, "once")
    [group] = asked.lock.groups.values()
    build = build_of(group, KERNEL, "gcc")
    monkeypatch.setattr(building, "needed", lambda _, names: {name: Need((build,)) for name in names})
    module = pack({"nvidia-current.ko": stub_module(build.driver, kernel=KERNEL)})
    monkeypatch.setattr(building, "fetched", lambda *_: module)
    return asked


def test_every_canary_tries_where_every_node_compiles(tmp_path: Path) -> None:
    ahead = Ahead(context(tmp_path, None), NAMES, ["a2"], Store(tmp_path))
    assert [bool(ahead.kernels(name)) for name in NAMES] == [False, True, False]
    assert not any(ahead.hands_out(name) for name in NAMES)


def test_one_canary_builds_for_all(shared: UpgradeContext, tmp_path: Path) -> None:
    store = Store(tmp_path)
    ahead = Ahead(shared, NAMES, ["a2", "a3"], store)
    assert [ahead.kernels(name) for name in NAMES] == [[], [KERNEL], []]
    assert [ahead.hands_out(name) for name in NAMES] == [False, True, False]
    ahead.take({"a2": [{"kernel": KERNEL, "path": "p", "size": 1, "sha256": ""}], "a1": []})
    again = Ahead(shared, NAMES, ["a2"], store)
    assert not any(again.kernels(name) for name in NAMES)


@pytest.mark.usefixtures("shared")
def test_a_named_builder_builds_and_no_canary(tmp_path: Path) -> None:
    named = context(tmp_path, "once", builder="a3", compiler="absent")
    ahead = Ahead(named, NAMES, ["a1"], Store(tmp_path))
    assert [ahead.kernels(name) for name in NAMES] == [[], [], [KERNEL]]
    without = Ahead(named, ["a1", "a2"], ["a1"], Store(tmp_path))
    assert not any(without.kernels(name) for name in NAMES)


def test_what_is_not_the_build_is_not_kept(
    shared: UpgradeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forged(*_: Any) -> bytes:
        return pack({"nvidia-current.ko": stub_module("1.2.3", kernel=KERNEL)})

    monkeypatch.setattr(building, "fetched", forged)
    ahead = Ahead(shared, NAMES, ["a1"], Store(tmp_path))
    with pytest.raises(NodeFailed, match=r"is of 1\.2\.3"):
        ahead.take({"a1": [{"kernel": KERNEL, "path": "p", "size": 1, "sha256": ""}]})
