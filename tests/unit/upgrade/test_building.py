"""Choice of the nodes that compile the new module before any node is drained, and the use of the module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply.kernel_modules.build import build_of
from gpuprov.apply.kernel_modules.once import Need
from gpuprov.apply.kernel_modules.packing import pack
from gpuprov.apply.kernel_modules.store import Store
from gpuprov.errors import NodeFailed, Refused
from gpuprov.model.lock import read_lock
from gpuprov.upgrade import building
from gpuprov.upgrade.building import Ahead
from gpuprov.upgrade.context import UpgradeContext
from gpuprov_lab.simulator import stub_module
from tests import RECORDED_LOCK

NAMES, KERNEL = ["a1", "a2", "a3"], "6.1.0-56-amd64"


ABOUT = {"kernel": KERNEL, "path": "/p", "size": 1, "sha256": ""}


def context(folder: Path, build: str | None, builder: Any = "a2", **more: str) -> UpgradeContext:
    """Return the context of an upgrade whose driver is built in this way, by this builder."""
    lock = read_lock(RECORDED_LOCK)
    [(name, group)] = lock.groups.items()
    driver = group.components.driver.model_copy(update={"build": build, "builder": builder, **more})
    components = group.components.model_copy(update={"driver": driver})
    mine = {"hosts": dict.fromkeys(NAMES, "127.0.0.1"), "components": components}
    stated = lock.model_copy(update={"groups": {name: group.model_copy(update=mine)}})
    return UpgradeContext(stated, folder, old=stated, source=folder)


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UpgradeContext:
    """Return the context of an upgrade in which a node compiles for the others; its module is a stub."""
    asked = context(tmp_path, "once")
    [group] = asked.lock.groups.values()
    module = pack({"nvidia-current.ko": stub_module(group.components.driver.version, kernel=KERNEL)})

    def needed(run: UpgradeContext, names: list[str]) -> dict[str, Need]:
        [group] = run.lock.groups.values()
        return {name: Need((build_of(group, KERNEL, "gcc"),)) for name in names}

    monkeypatch.setattr(building, "needed", needed)
    monkeypatch.setattr(building, "fetch", lambda *_: module)
    return asked


def test_every_canary_tries_where_every_node_compiles(tmp_path: Path) -> None:
    ahead = Ahead(context(tmp_path, None), NAMES, ["a2"], Store(tmp_path))
    assert [bool(ahead.kernels(name)) for name in NAMES] == [False, True, False]
    assert not any(ahead.shares(name) for name in NAMES)


def test_the_builder_builds_for_all_and_no_canary(shared: UpgradeContext, tmp_path: Path) -> None:
    store = Store(tmp_path)
    ahead = Ahead(shared, NAMES, ["a1", "a3"], store)
    assert [ahead.kernels(name) for name in NAMES] == [[], [KERNEL], []]
    assert [ahead.shares(name) for name in NAMES] == [False, True, False]
    ahead.take({"a2": [ABOUT], "a1": []})
    again = Ahead(shared, NAMES, ["a2"], store)
    assert not any(again.kernels(name) for name in NAMES)


@pytest.mark.usefixtures("shared")
def test_two_builders_build_and_have_to_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, store = context(tmp_path, "once", builder=["a1", "a3"]), Store(tmp_path)
    ahead = Ahead(pair, NAMES, ["a2"], store)
    assert [ahead.shares(name) for name in NAMES] == [True, False, True]
    with pytest.raises(NodeFailed, match="only a1 built the module"):
        ahead.take({"a1": [ABOUT]})
    ahead.take({"a1": [ABOUT], "a3": [ABOUT]})
    assert not any(Ahead(pair, NAMES, [], store).kernels(name) for name in NAMES)

    def forged(way: Any, build: Any, name: str, *_: Any) -> bytes:
        module = stub_module(build.driver, kernel=KERNEL) + b"payload" * (name == "a3")
        return pack({"nvidia-current.ko": module})

    monkeypatch.setattr(building, "fetch", forged)
    other = Ahead(pair, NAMES, ["a2"], Store(tmp_path / "other"))
    with pytest.raises(NodeFailed, match="a1 and a3 built different modules"):
        other.take({"a1": [ABOUT], "a3": [ABOUT]})


@pytest.mark.usefixtures("shared")
def test_what_a_canary_offers_that_is_not_the_builder_is_not_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    ahead = Ahead(context(tmp_path, "once"), NAMES, ["a1"], store)
    ahead.take({"a1": [ABOUT], "a3": [ABOUT]})
    assert any(Ahead(context(tmp_path, "once"), NAMES, ["a1"], store).kernels(name) for name in NAMES)


@pytest.mark.usefixtures("shared")
def test_nodes_that_cannot_compile_are_not_drained_without_a_module(tmp_path: Path) -> None:
    stated = context(tmp_path, "once", builder="a3", compiler="absent")
    ahead = Ahead(stated, NAMES, ["a1"], Store(tmp_path))
    assert [ahead.kernels(name) for name in NAMES] == [[], [], [KERNEL]]
    with pytest.raises(Refused, match=r"a\[1-2\]: no new module.*only a3 compiles it.*upgrade a3 as well"):
        Ahead(stated, ["a1", "a2"], ["a1"], Store(tmp_path))
    others = Ahead(context(tmp_path, "once", builder="a3"), ["a1", "a2"], ["a1"], Store(tmp_path))
    assert not any(others.kernels(name) for name in NAMES)


def test_a_lock_without_a_builder_has_no_node_build_for_others(tmp_path: Path) -> None:
    ahead = Ahead(context(tmp_path, "once", builder=None), NAMES, ["a1"], Store(tmp_path))
    assert not any(ahead.kernels(name) or ahead.shares(name) for name in NAMES)


def test_what_is_not_the_build_is_not_kept(
    shared: UpgradeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forged(*_: Any) -> bytes:
        return pack({"nvidia-current.ko": stub_module("1.2.3", kernel=KERNEL)})

    monkeypatch.setattr(building, "fetch", forged)
    ahead = Ahead(shared, NAMES, ["a1"], Store(tmp_path))
    with pytest.raises(NodeFailed, match=r"is of '1\.2\.3'"):
        ahead.take({"a2": [ABOUT]})
