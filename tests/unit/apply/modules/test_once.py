"""Compile once: who compiles, who waits for it, and what happens where that goes wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply.context import Options, RunContext
from gpuprov.apply.modules import once
from gpuprov.apply.modules.build import Build, build_of
from gpuprov.apply.modules.once import Need, Once
from gpuprov.apply.modules.store import Signer, Store, pack
from gpuprov.apply.playbook import NodeOutcome
from gpuprov.errors import GpuprovError, NodeFailed, Refused
from gpuprov.lab.simulator import stub_module
from gpuprov.model.lock import Lock, read_lock
from gpuprov.model.secure_boot import LockedSecureBoot
from gpuprov.roles import variables
from gpuprov.ssh.elsewhere import engaged
from tests import RECORDED_LOCK

NAMES = ("a1", "a2", "a3")
KERNEL, OTHER = "6.1.0-56-amd64", "6.1.0-55-amd64"
ROLES = ["preflight", "repositories", "nvidia_driver", "docker"]


def locked(build: str | None = "once", **more: str) -> Lock:
    lock = read_lock(RECORDED_LOCK)
    [(name, group)] = lock.groups.items()
    driver = group.components.driver.model_copy(update={"build": build, **more})
    components = group.components.model_copy(update={"driver": driver})
    mine = {"hosts": dict.fromkeys(NAMES, "127.0.0.1"), "components": components}
    return lock.model_copy(update={"groups": {name: group.model_copy(update=mine)}})


class Paper:
    """Nodes on paper: those that compile, and what each hands out."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lock, self.store = locked(), Store(folder / "store")
        [group] = self.lock.groups.values()
        self.kernels = dict.fromkeys(NAMES, KERNEL)
        self.builds = {kernel: build_of(group, kernel, "gcc") for kernel in (KERNEL, OTHER)}
        self.bare: set[str] = set()
        self.broken: set[str] = set()
        self.version = group.components.driver.version
        self.turns: list[dict[str, str]] = []
        self.offered: dict[str, Any] = {}
        self.at_fault = "nvidia_driver"
        self.parts: list[str] = []
        self.said: list[str] = []
        self.run = RunContext(self.lock, folder, narrate=self.said.append)
        monkeypatch.setattr(once, "needed", self._needed)
        monkeypatch.setattr(once, "run_playbook", self._run_playbook)
        monkeypatch.setattr(Once, "_fetched", lambda _, build, name: self._fetched(build, name))

    def once(self, run: RunContext | None = None) -> Once:
        return Once(run or self.run, {name: {"gpuprov_roles": ROLES} for name in NAMES}, self.store)

    def _needed(self, run: RunContext, names: list[str]) -> dict[str, Need]:
        return {name: Need((self.builds[self.kernels[name]],), name in self.bare) for name in names}

    def _run_playbook(
        self, playbook: str, nodes: dict[str, Any], run: RunContext, part: str
    ) -> dict[str, NodeOutcome]:
        assert part not in self.parts, "a turn has a folder of its own"
        self.parts.append(part)
        self.turns.append({name: self._done_to(name, each) for name, each in nodes.items()})
        outcomes = {name: NodeOutcome() for name in nodes}
        for name in self.broken & set(nodes):
            event = {
                "host": name,
                "role": self.at_fault,
                "task": "Install",
                "status": "failed",
                "msg": "no room",
            }
            outcomes[name].failed.append(event)
        return outcomes

    def _done_to(self, name: str, stated: dict[str, Any]) -> str:
        """`all` roles or only the `driver`, its module `later`, from the `store` or by `itself`."""
        self.offered |= {name: stated["nvidia_driver_builds"]} if "nvidia_driver_builds" in stated else {}
        roles = {tuple(ROLES): "all", ("nvidia_driver",): "driver"}[tuple(stated["gpuprov_roles"])]
        if stated.get("nvidia_driver_module_later"):
            return f"{roles}, later"
        return f"{roles}, store" if "nvidia_driver_builds" in stated else f"{roles}, itself"

    def _fetched(self, build: Build, name: str) -> Any:
        module = stub_module(self.version, kernel=build.kernel)
        return self.store.keep(build, pack({"nvidia-current.ko": module}), name)


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paper:
    return Paper(tmp_path, monkeypatch)


def test_the_first_node_compiles_and_all_get_what_it_made(paper: Paper) -> None:
    assert set(paper.once().apply()) == set(NAMES)
    assert paper.turns == [{"a1": "all, itself"}, {"a2": "all, store", "a3": "all, store"}]
    assert paper.offered["a2"] == paper.offered["a3"]
    assert paper.offered["a2"][0]["kernel"] == KERNEL
    assert "a1 compiles the module" in paper.said[0]
    assert "once for 3 nodes" in paper.said[0]


def test_bare_nodes_do_all_but_the_module_meanwhile(paper: Paper) -> None:
    paper.bare = {"a1", "a3"}
    paper.once().apply()
    assert paper.turns == [
        {"a1": "all, itself", "a3": "all, later"},
        {"a2": "all, store", "a3": "driver, store"},
    ]


def test_what_is_in_the_store_is_compiled_by_nobody(paper: Paper) -> None:
    paper.once().apply()
    paper.turns, paper.parts = [], []
    paper.once().apply()
    assert paper.turns == [dict.fromkeys(NAMES, "all, store")]


def test_a_node_of_another_kernel_compiles_for_itself_and_is_kept(paper: Paper) -> None:
    paper.kernels["a2"] = OTHER
    paper.once().apply()
    assert paper.turns == [{"a1": "all, itself", "a2": "all, itself"}, {"a3": "all, store"}]
    assert paper.store.find(paper.builds[OTHER])


def test_where_two_fail_everybody_compiles(paper: Paper) -> None:
    paper.broken, paper.bare = {"a1", "a2"}, {"a2", "a3"}
    done = paper.once().apply()
    assert paper.turns == [
        {"a1": "all, itself", "a2": "all, later", "a3": "all, later"},
        {"a3": "driver, itself"},
    ]
    assert [done[name].ok for name in NAMES] == [False, False, True]


def test_a_second_builder_takes_the_place_of_one_that_failed(paper: Paper) -> None:
    paper.broken, paper.bare = {"a1"}, {"a2"}
    paper.once().apply()
    assert paper.turns == [
        {"a1": "all, itself", "a2": "all, later"},
        {"a2": "driver, itself"},
        {"a3": "all, store"},
    ]


def test_what_a_builder_made_counts_although_it_failed_after_that(paper: Paper) -> None:
    paper.broken, paper.at_fault = {"a1"}, "docker"
    done = paper.once().apply()
    assert paper.turns == [{"a1": "all, itself"}, {"a2": "all, store", "a3": "all, store"}]
    assert not done["a1"].ok


def test_a_named_builder_compiles_and_another_one_where_it_fails(paper: Paper) -> None:
    paper.broken = {"a2"}
    paper.once(replace(paper.run, lock=locked(builder="a2"))).apply()
    assert paper.turns == [{"a2": "all, itself"}, {"a1": "all, itself"}, {"a3": "all, store"}]


def test_where_compilers_are_absent_only_the_builder_compiles(paper: Paper) -> None:
    run = replace(paper.run, lock=locked(builder="a2", compiler="absent"))
    paper.broken = {"a2"}
    paper.once(run).apply()
    # Without a build on offer the role refuses to compile there.
    assert paper.turns == [{"a2": "all, itself"}, {"a1": "all, itself", "a3": "all, itself"}]
    [group] = run.lock.groups.values()
    assert variables(group)["nvidia_driver_only_builder"] == "a2"


def test_what_cannot_be_kept_is_said_and_everybody_compiles(
    paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*_: object) -> None:
        raise NodeFailed("an archive of modules that changed on the way")

    monkeypatch.setattr(Once, "_fetched", changed)
    paper.once().apply()
    assert paper.offered == {}
    assert any("is not kept: an archive of modules that changed on the way" in each for each in paper.said)


def test_what_cannot_be_signed_ends_the_run(paper: Paper, tmp_path: Path) -> None:
    def refuse(name: str, content: bytes) -> bytes:
        raise GpuprovError("the token is out")

    paper.store = Store(tmp_path / "signed", Signer("ab" * 32, refuse))
    with pytest.raises(GpuprovError, match="the token is out"):
        paper.once().apply()
    assert len(paper.turns) == 1


def test_one_node_alone_gets_its_module_back_signed(paper: Paper, tmp_path: Path) -> None:
    paper.store = Store(tmp_path / "signed", Signer("ab" * 32, lambda name, content: content + b"signed"))
    Once(paper.run, {"a1": {"gpuprov_roles": ROLES}}, paper.store).apply()
    assert paper.turns == [{"a1": "all, itself"}, {"a1": "driver, store"}]
    assert "to be signed here" in paper.said[0]


def test_a_changed_store_ends_the_run(paper: Paper) -> None:
    paper.once().apply()
    kept = paper.store.find(paper.builds[KERNEL])
    assert kept
    kept.archive.write_bytes(kept.archive.read_bytes() + b"x")
    with pytest.raises(Refused, match="is not what was kept"):
        paper.once().apply()


def test_a_check_is_one_turn_and_keeps_nothing(paper: Paper) -> None:
    paper.once(replace(paper.run, options=Options(check=True))).apply()
    assert paper.turns == [dict.fromkeys(NAMES, "all, itself")]
    assert paper.store.find(paper.builds[KERNEL]) is None


def test_groups_that_compile_everywhere_are_not_asked(paper: Paper) -> None:
    paper.once(replace(paper.run, lock=locked(None))).apply()
    assert paper.turns == [dict.fromkeys(NAMES, "all, itself")]


def test_with_workers_nodes_compile_for_themselves_and_those_that_cannot_are_refused(tmp_path: Path) -> None:
    secure = LockedSecureBoot(fingerprint="ab" * 32, signer="CN=us", serial="01:02")
    signing = locked()
    [(name, group)] = signing.groups.items()
    signed = signing.model_copy(update={"groups": {name: group.model_copy(update={"secure_boot": secure})}})
    crew: Any = None
    with engaged(crew):
        assert once.needed(RunContext(locked(), tmp_path), NAMES) == {}
        with pytest.raises(
            Refused, match=r"^a\[1-3\]: modules are signed on this controller.*--workers none"
        ):
            once.needed(RunContext(signed, tmp_path), NAMES)
        with pytest.raises(Refused, match=r"^a\[1,3\]: modules are compiled for nodes without a compiler"):
            once.needed(RunContext(locked(builder="a2", compiler="absent"), tmp_path), NAMES)


def test_only_a_group_that_shares_is_told_so() -> None:
    [shared], [alone] = locked().groups.values(), locked(None).groups.values()
    assert variables(shared)["nvidia_driver_module_build"] == "once"
    assert "nvidia_driver_module_build" not in variables(alone)
