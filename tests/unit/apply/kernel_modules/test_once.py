"""Compiling once: which node compiles, which nodes wait, and the results of failures."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply.context import Options, RunContext
from gpuprov.apply.kernel_modules import once
from gpuprov.apply.kernel_modules.build import Build, build_of
from gpuprov.apply.kernel_modules.once import Need, Once
from gpuprov.apply.kernel_modules.packing import pack
from gpuprov.apply.kernel_modules.store import Signer, Store
from gpuprov.apply.playbook import NodeOutcome
from gpuprov.errors import GpuprovError, NodeFailed, Refused
from gpuprov.model.lock import Lock, read_lock
from gpuprov.model.secure_boot import LockedSecureBoot
from gpuprov.roles import variables
from gpuprov.ssh.dispatch import Dispatch
from gpuprov_lab.simulator import stub_module
from tests import RECORDED_LOCK

NAMES = ("a1", "a2", "a3")
KERNEL, OTHER = "6.1.0-56-amd64", "6.1.0-55-amd64"
ROLES = ["preflight", "repositories", "nvidia_driver", "docker"]


def locked(build: str | None = "once", builder: Any = "a1", **more: str) -> Lock:
    """Return the recorded lock with these nodes, and another build, builder or other values of the driver."""
    lock = read_lock(RECORDED_LOCK)
    [(name, group)] = lock.groups.items()
    driver = group.components.driver.model_copy(update={"build": build, "builder": builder, **more})
    components = group.components.model_copy(update={"driver": driver})
    mine = {"hosts": dict.fromkeys(NAMES, "127.0.0.1"), "components": components}
    return lock.model_copy(update={"groups": {name: group.model_copy(update=mine)}})


def signed(lock: Lock) -> Lock:
    """Return the lock with a Secure Boot certificate."""
    secure = LockedSecureBoot(fingerprint="ab" * 32, signer="CN=us", serial="01:02")
    [(name, group)] = lock.groups.items()
    return lock.model_copy(update={"groups": {name: group.model_copy(update={"secure_boot": secure})}})


class Paper:
    """Fake nodes: which of them compile, and the modules that each offers."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lock, self.store = locked(), Store(folder / "store")
        [group] = self.lock.groups.values()
        self.kernels = dict.fromkeys(NAMES, KERNEL)
        self.there: set[str] = set()
        self.payload: dict[str, bytes] = {}
        self.asked: list[str] = []
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
        monkeypatch.setattr(Once, "_fetched", lambda _, build, builder, name: self._fetched(build, name))

    def once(self, run: RunContext | None = None) -> Once:
        """Return a new run of the compiling, with no parts played yet."""
        self.parts = []
        return Once(run or self.run, {name: {"gpuprov_roles": ROLES} for name in NAMES}, self.store)

    def build(self, kernel: str, lock: Lock | None = None) -> Build:
        """Return the build of a lock's only group for a kernel."""
        [group] = (lock or self.lock).groups.values()
        return build_of(group, kernel, "gcc")

    def _needed(self, run: RunContext, names: list[str]) -> dict[str, Need]:
        """Return what each node needs: its build, whether it has no module at all, and the builds that it
        has.
        """

        def need(name: str) -> Need:
            build = self.build(self.kernels[name], run.lock)
            return Need((build,), name in self.bare, frozenset({build} if name in self.there else ()))

        return {name: need(name) for name in names}

    def _run_playbook(
        self, playbook: str, nodes: dict[str, Any], run: RunContext, part: str
    ) -> dict[str, NodeOutcome]:
        """Record a turn of the compiling; return its outcomes, with failures of the broken nodes."""
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
        """Return the roles (`all`, `driver`) and the module's source: `later`, `store` or `itself`."""
        self.offered |= {name: stated["nvidia_driver_builds"]} if "nvidia_driver_builds" in stated else {}
        roles = {tuple(ROLES): "all", ("nvidia_driver",): "driver"}[tuple(stated["gpuprov_roles"])]
        if stated.get("nvidia_driver_module_later"):
            return f"{roles}, later"
        return f"{roles}, store" if "nvidia_driver_builds" in stated else f"{roles}, itself"

    def _fetched(self, build: Build, name: str) -> bytes:
        """Return a node's module for its own kernel, with the payload if one is set.

        Raises:
            NodeFailed: the node has another kernel than the build.
        """
        self.asked.append(name)
        if self.kernels[name] != build.kernel:
            raise NodeFailed(f"DKMS has no module for kernel {build.kernel}")
        module = stub_module(self.version, kernel=build.kernel) + self.payload.get(name, b"")
        return pack({"nvidia-current.ko": module})


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


def test_a_node_of_another_kernel_compiles_for_itself_alone(paper: Paper) -> None:
    """Modules of a node that is not the builder are not distributed."""
    paper.kernels["a2"] = paper.kernels["a3"] = OTHER
    paper.once().apply()
    assert paper.turns == [dict.fromkeys(NAMES, "all, itself")]
    assert paper.asked == ["a1"]  # for its own kernel
    assert paper.store.find(paper.build(OTHER)) is None


def test_what_another_node_than_the_builder_offers_reaches_no_other(paper: Paper) -> None:
    """Modules with a payload from nodes other than the builder do not reach the store."""
    paper.payload = {"a2": b"payload", "a3": b"payload"}
    paper.once().apply()
    paper.once().apply()
    assert set(paper.asked) == {"a1"}
    kept = paper.store.find(paper.build(KERNEL))
    assert kept
    assert b"payload" not in gzip.decompress(kept.archive.read_bytes())


def test_where_the_builder_fails_everybody_else_compiles_for_itself(paper: Paper) -> None:
    paper.broken, paper.bare = {"a1"}, {"a2"}
    done = paper.once().apply()
    assert paper.turns == [
        {"a1": "all, itself", "a2": "all, later"},
        {"a2": "driver, itself", "a3": "all, itself"},
    ]
    assert [done[name].ok for name in NAMES] == [False, True, True]
    assert "a1 has not compiled it" in paper.said[-1]
    assert paper.store.find(paper.build(KERNEL)) is None


def test_two_builders_compile_and_others_get_what_both_made(paper: Paper) -> None:
    lock = locked(builder=["a1", "a3"])
    paper.once(replace(paper.run, lock=lock)).apply()
    assert paper.turns == [{"a1": "all, itself", "a3": "all, itself"}, {"a2": "all, store"}]
    assert "a[1,3] each compile the module" in paper.said[0]
    assert paper.store.find(paper.build(KERNEL, lock))
    assert paper.store.find(paper.build(KERNEL)) is None


def test_what_two_builders_do_not_agree_on_reaches_nobody(paper: Paper) -> None:
    paper.payload = {"a3": b"payload"}
    paper.once(replace(paper.run, lock=locked(builder=["a1", "a3"]))).apply()
    assert paper.turns == [{"a1": "all, itself", "a3": "all, itself"}, {"a2": "all, itself"}]
    assert "a1 and a3 built different modules" in paper.said[-1]
    assert paper.offered == {}


def test_a_builder_that_is_not_in_the_run_is_asked_for_what_it_has(paper: Paper) -> None:
    nodes = {name: {"gpuprov_roles": ROLES} for name in ("a2", "a3")}
    Once(paper.run, nodes, paper.store).apply()
    assert paper.turns.pop() == dict.fromkeys(("a2", "a3"), "all, itself")
    assert "a1 has not compiled it for that kernel and compiler" in paper.said[-1]
    paper.there, paper.parts = {"a1"}, []
    Once(paper.run, nodes, paper.store).apply()
    assert paper.turns == [dict.fromkeys(("a2", "a3"), "all, store")]
    assert paper.asked == ["a1"]


def test_a_builder_that_has_it_already_compiles_nothing_and_keeps_its_own(paper: Paper) -> None:
    paper.there = {"a1"}
    paper.once().apply()
    assert paper.turns == [{"a1": "all, itself", "a2": "all, store", "a3": "all, store"}]


def test_a_lock_without_a_builder_has_each_node_compile_and_says_so(paper: Paper) -> None:
    paper.once(replace(paper.run, lock=locked(builder=None))).apply()
    assert paper.turns == [dict.fromkeys(NAMES, "all, itself")]
    assert paper.asked == []
    assert paper.said == [
        "a[1-3]: the lock names no builder, so each node compiles;"
        " state stack: {builder: NODE} in fleet.yml, and gpuprov lock"
    ]


def test_nothing_is_signed_for_a_lock_without_a_builder(paper: Paper) -> None:
    lock = signed(locked(builder=None))
    with pytest.raises(
        Refused, match=r"a\[1-3\]: the lock names no builder, and only a trusted builder's modules"
    ):
        paper.once(replace(paper.run, lock=lock))


def test_a_module_for_secure_boot_is_compiled_by_builders_alone() -> None:
    [group] = signed(locked(builder=["a1", "a2"])).groups.values()
    assert variables(group)["nvidia_driver_only_builder"] == ["a1", "a2"]
    [plain] = locked(builder=["a1", "a2"]).groups.values()
    assert "nvidia_driver_only_builder" not in variables(plain)


def test_builds_of_before_are_named_and_not_used(paper: Paper) -> None:
    old = paper.store.folder / KERNEL / "535.309.01-proprietary-x86_64-0123456789ab"
    old.mkdir(parents=True)
    (old / "about.json").write_text("{}")
    paper.once().apply()
    paper.once().apply()
    assert [f"rm -r {old.parent}" in line for line in paper.said].count(True) == 1


def test_what_a_builder_made_counts_although_it_failed_after_that(paper: Paper) -> None:
    paper.broken, paper.at_fault = {"a1"}, "docker"
    done = paper.once().apply()
    assert paper.turns == [{"a1": "all, itself"}, {"a2": "all, store", "a3": "all, store"}]
    assert not done["a1"].ok


def test_a_stated_builder_compiles(paper: Paper) -> None:
    paper.once(replace(paper.run, lock=locked(builder="a2"))).apply()
    assert paper.turns == [{"a2": "all, itself"}, {"a1": "all, store", "a3": "all, store"}]


def test_where_compilers_are_absent_only_the_builder_compiles(paper: Paper) -> None:
    run = replace(paper.run, lock=locked(builder="a2", compiler="absent"))
    paper.broken = {"a2"}
    paper.once(run).apply()
    # The role refuses to compile on these nodes if no build is offered.
    assert paper.turns == [{"a2": "all, itself"}, {"a1": "all, itself", "a3": "all, itself"}]
    [group] = run.lock.groups.values()
    assert variables(group)["nvidia_driver_only_builder"] == ["a2"]


def test_what_cannot_be_kept_is_said_and_everybody_compiles(
    paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*_: object) -> None:
        raise NodeFailed("an archive of modules that changed on the way")

    monkeypatch.setattr(Once, "_fetched", changed)
    paper.once().apply()
    assert paper.offered == {}
    assert any(
        "is not in the store: an archive of modules that changed on the way" in each for each in paper.said
    )


def test_what_cannot_be_signed_ends_the_run(paper: Paper, tmp_path: Path) -> None:
    def refuse(content: bytes) -> bytes:
        raise GpuprovError("the token is out")

    paper.store = Store(tmp_path / "signed", signer=Signer("ab" * 32, refuse))
    with pytest.raises(GpuprovError, match="the token is out"):
        paper.once().apply()
    assert len(paper.turns) == 1


def test_a_builder_that_compresses_in_a_form_unknown_here_ends_no_run(
    paper: Paper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a builder which packs with zstd fails alone where no program for that is installed."""
    monkeypatch.setattr(Once, "_fetched", lambda *_: pack({"nvidia.ko.zst": b"x"}))
    monkeypatch.setenv("PATH", str(tmp_path))
    paper.store = Store(tmp_path / "signed", signer=Signer("ab" * 32, bytes))
    paper.once().apply()
    [said] = [each for each in paper.said if "is not in the store" in each]
    assert said.endswith("nvidia.ko.zst cannot be unpacked: no program zstd on this machine; install zstd")


def test_one_node_alone_gets_its_module_back_signed(paper: Paper, tmp_path: Path) -> None:
    paper.store = Store(tmp_path / "signed", signer=Signer("ab" * 32, lambda content: content + b"signed"))
    Once(paper.run, {"a1": {"gpuprov_roles": ROLES}}, paper.store).apply()
    assert paper.turns == [{"a1": "all, itself"}, {"a1": "driver, store"}]


def test_a_changed_store_ends_the_run(paper: Paper) -> None:
    paper.once().apply()
    kept = paper.store.find(paper.build(KERNEL))
    assert kept
    kept.archive.write_bytes(kept.archive.read_bytes() + b"x")
    with pytest.raises(Refused, match="does not match its record"):
        paper.once().apply()


def test_a_check_is_one_turn_and_keeps_nothing(paper: Paper) -> None:
    paper.once(replace(paper.run, options=Options(check=True))).apply()
    assert paper.turns == [dict.fromkeys(NAMES, "all, itself")]
    assert paper.store.find(paper.build(KERNEL)) is None


def test_groups_that_compile_everywhere_are_not_asked(paper: Paper) -> None:
    paper.once(replace(paper.run, lock=locked(None))).apply()
    assert paper.turns == [dict.fromkeys(NAMES, "all, itself")]


def test_with_workers_nodes_compile_for_themselves_and_those_that_cannot_are_refused(tmp_path: Path) -> None:
    crew: Any = object()
    options = Options(Dispatch(crew=crew))
    assert once.needed(RunContext(locked(), tmp_path, options), NAMES) == {}
    with pytest.raises(Refused, match=r"^a\[1-3\]: modules are signed on this controller.*--workers none"):
        once.needed(RunContext(signed(locked()), tmp_path, options), NAMES)
    with pytest.raises(Refused, match=r"^a\[1,3\]: modules are compiled for nodes without a compiler"):
        once.needed(RunContext(locked(builder="a2", compiler="absent"), tmp_path, options), NAMES)


def test_only_a_group_that_shares_is_warned() -> None:
    [shared], [alone] = locked().groups.values(), locked(None).groups.values()
    assert variables(shared)["nvidia_driver_module_build"] == "once"
    assert "nvidia_driver_module_build" not in variables(alone)
