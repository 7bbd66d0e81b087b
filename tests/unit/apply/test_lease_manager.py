"""LeaseManager of runs on fake nodes, which run the real lease program."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply import lease_manager
from gpuprov.apply.lease import read_lease
from gpuprov.apply.lease_manager import FILE, LeaseManager, Terms, is_over
from gpuprov.apply.node.lease import ATTEMPT_S
from gpuprov.errors import NodeFailed, Refused, Unreachable
from gpuprov.files.runs import state_dir
from gpuprov.upgrade.exclusive import lost, take_all
from tests.unit.apply.paper_nodes import PaperNodes

REAL_UPTIME = lease_manager.uptime
MINE, OTHER = "20260131-142501-apply-0001", "20260131-142502-apply-0002"
UPGRADE = "20260131-142503-upgrade-0003"


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PaperNodes:
    """Return the fake nodes n1, n2 and n3."""
    return PaperNodes(tmp_path, monkeypatch, "n1", "n2", "n3")


def run_folder(name: str) -> Path:
    """Return the folder of a run, created if needed."""
    folder = state_dir() / "runs" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def leases_of(nodes: PaperNodes, name: str = MINE, **terms: Any) -> LeaseManager:
    """Return the manager of a run's leases on the nodes, by default of the run `MINE`."""
    return LeaseManager([nodes.lock()], run_folder(name), terms=Terms(**terms))


def is_leased(leases: LeaseManager, name: str) -> bool:
    """Return whether Ansible may act on a node now, as `plugins/plugin_utils/leased.py` finds out."""
    return bool(json.loads(leases.file.read_text())["until"][name] >= REAL_UPTIME())


def silent(line: str) -> None:
    """Fail if a line is printed."""
    raise AssertionError(line)


def test_a_node_that_another_run_has_is_refused_with_who_and_since_when(nodes: PaperNodes) -> None:
    nodes.give("n2", OTHER, "anna@ctl1", seconds=600)
    nodes.now += 180
    refused = leases_of(nodes).take(["n1", "n2"])
    assert list(refused) == ["n2"]
    assert isinstance(refused["n2"], Refused)
    words = re.fullmatch(
        rf"leased by anna@ctl1, run {OTHER}, since (\S+), until (\S+) unless renewed;"
        " wait for it, or interrupt it there",
        str(refused["n2"]),
    )
    assert words
    here = datetime.now().astimezone()
    for result, minutes in zip(words.groups(), (-3, 7), strict=True):
        near = [here + timedelta(minutes=minutes, seconds=late) for late in (-5, 0)]
        assert result in [each.strftime("%H:%M") for each in near] or f"{here:%d}" != f"{near[0]:%d}"
    assert nodes.holders == {"n1": MINE, "n2": OTHER}


def test_a_lease_of_another_day_has_its_day() -> None:
    result = {"run": UPGRADE, "holder": "x@y", "had_s": 200000.0, "left_s": 100.0, "silent_s": 500.0}
    lease = read_lease(result)
    assert lease is not None
    assert re.search(r"since \d{4}-\d\d-\d\d \d\d:\d\d, until", str(lease))
    assert lease.advice == "wait for it, or resume it there"
    assert "since" not in str(read_lease({**result, "had_s": None}))


def test_an_upgrade_takes_all_or_none(nodes: PaperNodes) -> None:
    nodes.give("n2", OTHER)
    mine = leases_of(nodes, UPGRADE, resumable=True)
    with pytest.raises(Refused, match=f"^n2: leased by x@y, run {OTHER}"):
        take_all(mine, nodes.names, silent)
    assert nodes.holders == {"n2": OTHER}


def test_a_node_out_of_reach_has_no_other_run(nodes: PaperNodes) -> None:
    nodes.dark = {"n3"}
    mine = leases_of(nodes)
    assert isinstance(mine.take(["n1", "n3"])["n3"], Unreachable)
    take_all(mine, ["n1", "n3"], silent)
    assert nodes.holders == {"n1": MINE}
    assert set(mine.lost(["n1", "n3"])) == {"n3"}


def test_leases_are_renewed_while_a_step_lasts_longer_than_they_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = PaperNodes(tmp_path, monkeypatch, "n1", "n2")
    monkeypatch.setattr(lease_manager, "uptime", time.monotonic)
    nodes.clock = time.monotonic
    with leases_of(nodes, seconds=0.8) as mine:
        assert mine.take(nodes.names) == {}
        time.sleep(2.4)
        assert mine.lost(nodes.names) == {}
        assert nodes.do("n1", "take", OTHER, "x@y", 60)["run"] == MINE
        assert [act for act, _ in nodes.asked].count("renew") >= 3
    assert nodes.do("n1", "take", OTHER, "x@y", 60)["run"] == OTHER
    assert not mine.file.exists()


@pytest.mark.parametrize("act", ["take", "renew"])
def test_a_node_that_answers_slowly_does_not_keep_the_others_from_being_leased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """Let n2 answer later than a worker attempt relies on a lease: that of n1 counts all the time, and the
    renewals of n2 do not pile up.
    """
    nodes = PaperNodes(tmp_path, monkeypatch, "n1", "n2")
    monkeypatch.setattr(lease_manager, "uptime", REAL_UPTIME)
    nodes.clock = time.monotonic
    nodes.slow = {("n2", act): 1.5}
    with leases_of(nodes, seconds=60, hold_s=1.0) as mine:
        assert mine.take(nodes.names) == {}
        begun = time.monotonic()
        while time.monotonic() < begun + 2.5:
            assert is_leased(mine, "n1")
            time.sleep(0.05)
        assert "n1" not in mine.lost(nodes.names)
        assert is_leased(mine, "n1")
        if act == "renew":
            assert [names for asked, names in nodes.asked if asked == "renew"].count(["n2"]) <= 3


def test_what_nobody_renews_is_somebody_elses_and_nothing_more_is_done_there(nodes: PaperNodes) -> None:
    mine = leases_of(nodes)
    mine.take(nodes.names)
    nodes.now += 700
    nodes.give("n2", OTHER, "anna@ctl1")
    lost = mine.lost(nodes.names)
    assert list(lost) == ["n2"]
    said = "another run took its lease while this one was at work; it is leased by anna@ctl1, run "
    assert str(lost["n2"]).startswith(f"{said}{OTHER}, since ")
    mine.require("n1")
    with pytest.raises(NodeFailed, match="another run took its lease"):
        mine.require("n2")
    result = json.loads(mine.file.read_text())
    assert (sorted(result["until"]), list(result["lost"])) == (["n1", "n3"], ["n2"])
    mine.release()
    assert nodes.holders == {"n2": OTHER}


def test_a_node_that_another_run_had_in_between_is_lost_also_when_it_is_free_again(nodes: PaperNodes) -> None:
    mine = leases_of(nodes)
    mine.take(nodes.names)
    nodes.now += 700
    nodes.give("n2", OTHER)
    nodes.do("n2", "release", OTHER)
    assert str(mine.lost(["n2"])["n2"]).endswith("while this one was at work; no run has it now")
    assert "n2" not in nodes.holders


def test_a_node_that_boots_for_longer_than_its_lease_is_ours_again(nodes: PaperNodes) -> None:
    mine = leases_of(nodes)
    mine.take(nodes.names)
    nodes.dark = {"n2"}
    nodes.now += 700
    lost = mine.lost(["n1", "n2"])
    assert list(lost) == ["n2"]
    assert str(lost["n2"]) == "its lease could not be renewed in time: no SSH on port 22: timed out"
    nodes.dark = set()
    assert mine.lost(["n1", "n2"]) == {}


def test_a_lease_that_was_given_back_does_not_come_again(nodes: PaperNodes) -> None:
    mine = leases_of(nodes)
    mine.take(nodes.names)
    mine.release()
    assert nodes.holders == {}
    assert nodes.do("n1", "renew", MINE, "a@b", 600) is None
    assert nodes.holders == {}


@pytest.mark.parametrize("resumable", [False, True])
def test_an_interrupted_run_gives_its_leases_back_unless_it_can_be_resumed(
    nodes: PaperNodes, resumable: bool
) -> None:
    def interrupted() -> None:
        """Lease the nodes, then interrupt."""
        with leases_of(nodes, resumable=resumable) as mine:
            mine.take(nodes.names)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert set(nodes.holders.values()) == ({MINE} if resumable else set())
    assert not is_over(MINE) if resumable else is_over(MINE)


def test_a_run_from_here_whose_controller_was_killed_is_in_nobodys_way(nodes: PaperNodes) -> None:
    """LeaseManager of a run on this controller whose process was killed do not block another run.

    This also holds for a run that ended while a node was unreachable.
    """
    killed = leases_of(nodes, OTHER)
    killed.take(["n1", "n2"])
    assert leases_of(nodes).take(["n1", "n2"]) == {}
    assert nodes.holders == {"n1": MINE, "n2": MINE}


def test_a_killed_workers_hand_is_in_nobodys_way_once_it_is_silent(nodes: PaperNodes) -> None:
    """LeaseManager of a killed worker's attempt block other runs only until the attempt counts as silent.

    Its own run was killed too, so no later attempt replaces it.
    """
    killed = leases_of(nodes, OTHER)
    killed.take(["n1", "n2"])
    nodes.give("n1", f"{OTHER}/7.aa", "x@w1")
    nodes.now += ATTEMPT_S - 5
    refused = str(leases_of(nodes).take(["n1", "n2"])["n1"])
    assert f"run {OTHER}/7.aa" in refused
    assert (
        "if that ended or lost its connection: run the same command on the same controller, 60 s later"
        in refused
    )
    nodes.do("n1", "release", OTHER)
    assert nodes.holders["n1"] == f"{OTHER}/7.aa", "it is not silent, whoever thinks so"
    nodes.now += 10
    assert leases_of(nodes).take(["n1"]) == {}
    assert set(nodes.holders.values()) == {MINE}


def test_a_silent_hand_of_a_run_that_is_alive_or_of_elsewhere_has_its_node(nodes: PaperNodes) -> None:
    with leases_of(nodes, OTHER) as alive:
        alive.take(["n1"])
        nodes.give("n1", f"{OTHER}/7.aa", "x@w1")
        nodes.give("n2", f"{UPGRADE}/7.aa", "x@w1")
        alive._leaving.set()
        nodes.now += 2 * ATTEMPT_S
        assert list(leases_of(nodes).take(["n1", "n2"])) == ["n1", "n2"]


def test_as_long_as_its_ansible_is_at_work_a_killed_run_is_in_the_way(nodes: PaperNodes) -> None:
    killed = leases_of(nodes, OTHER)
    with killed:
        killed.take(["n1"])
        assert killed.handle is not None
        ansible = subprocess.Popen(["sleep", "60"], pass_fds=[killed.handle])
        killed._leaving.set()
        nodes.now += 100
        os.close(killed.handle)
        killed.handle = None
        refused = leases_of(nodes).take(["n1"])
        assert isinstance(refused["n1"], Refused)
        ansible.kill()
        ansible.wait()
        assert leases_of(nodes).take(["n1"]) == {}


def test_a_killed_upgrade_keeps_its_nodes_for_the_one_that_resumes_it(nodes: PaperNodes) -> None:
    leases_of(nodes, UPGRADE, resumable=True, seconds=3600).take(["n1", "n2"])
    nodes.now += 3000
    assert "resume it there" in str(leases_of(nodes).take(["n1"])["n1"])
    assert leases_of(nodes, UPGRADE, resumable=True, seconds=3600).take(["n1", "n2"]) == {}


def test_a_resumed_upgrade_waits_for_workers_that_were_cut_off_and_leaves_no_lease(
    nodes: PaperNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_all(leases_of(nodes, UPGRADE, resumable=True), nodes.names, silent)
    nodes.give("n2", f"{UPGRADE}/7.aa", "x@w1")
    begun, result = nodes.now, list[str]()

    def pass_by(seconds: float) -> None:
        nodes.now += seconds

    monkeypatch.setattr(lease_manager.time, "sleep", pass_by)
    resumed = leases_of(nodes, UPGRADE, resumable=True)
    take_all(resumed, nodes.names, result.append)
    assert result == ["waiting for workers that lost their connection and may still change n2"]
    assert ATTEMPT_S <= nodes.now - begun < ATTEMPT_S + 5
    resumed.release()
    assert nodes.holders == {}


def test_a_resumed_upgrade_keeps_its_nodes_while_a_worker_of_it_goes_on_and_on(
    nodes: PaperNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.give("n2", f"{UPGRADE}/7.aa", "x@w1", seconds=3600)

    def pass_by(seconds: float) -> None:
        nodes.now += seconds * 10
        nodes.do("n2", "renew", f"{UPGRADE}/7.aa", "x@w1", 3600)

    monkeypatch.setattr(lease_manager.time, "sleep", pass_by)
    with pytest.raises(Refused, match="wait for that worker or end it, then run the same command again"):
        take_all(leases_of(nodes, UPGRADE, resumable=True, seconds=3600), nodes.names, [].append)
    assert nodes.holders == {"n1": UPGRADE, "n2": f"{UPGRADE}/7.aa", "n3": UPGRADE}


def test_a_resumed_upgrade_does_not_wait_for_a_worker_where_another_run_has_a_node(nodes: PaperNodes) -> None:
    nodes.give("n1", OTHER)
    nodes.give("n2", f"{UPGRADE}/7.aa", "x@w1")
    with pytest.raises(Refused, match=f"run {OTHER}.*run {UPGRADE}/7.aa"):
        take_all(leases_of(nodes, UPGRADE, resumable=True), nodes.names, silent)
    assert nodes.holders == {"n1": OTHER, "n2": f"{UPGRADE}/7.aa"}


def test_at_its_end_a_run_gives_back_what_a_dead_workers_hand_has(nodes: PaperNodes) -> None:
    mine = leases_of(nodes)
    mine.take(["n1", "n2"])
    nodes.give("n1", f"{MINE}/7.aa", "x@w1")
    nodes.give("n2", f"{MINE}/8.bb", "x@w2")
    nodes.now += ATTEMPT_S - 5
    nodes.do("n2", "renew", f"{MINE}/8.bb", "x@w2", 600)
    nodes.now += 10
    mine.release()
    assert nodes.holders == {"n2": f"{MINE}/8.bb"}


def test_a_run_of_another_controller_is_not_over_whatever_it_is_called(nodes: PaperNodes) -> None:
    assert not any(map(is_over, [OTHER, "", ".", "..", "../runs", "a/b", "x\0y", "A"]))
    run_folder(OTHER)
    (run_folder(OTHER) / FILE).write_text("{")
    assert not is_over(OTHER)


def test_who_asks_whether_a_run_is_alive_leaves_it_alive(nodes: PaperNodes) -> None:
    with leases_of(nodes, OTHER) as other:
        other.take(["n1"])
        assert not is_over(OTHER)
        assert not is_over(OTHER)
        handle = os.open(run_folder(OTHER), os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
    assert is_over(OTHER)


def test_a_controller_that_slept_too_long_does_nothing_more(nodes: PaperNodes) -> None:
    mine = leases_of(nodes, UPGRADE)
    take_all(mine, ["n1", "n2"], silent)
    assert not lost(mine, ["n1"], silent)
    nodes.now += 700
    nodes.give("n2", OTHER)
    assert not lost(mine, ["n1"], silent)
    [(name, error)] = lost(mine, ["n1", "n2"], silent).items()
    assert (name, str(error).partition(" while")[0]) == ("n2", "another run took its lease")
    assert nodes.holders == {"n1": UPGRADE, "n2": OTHER}


def test_a_node_that_was_out_of_reach_at_first_is_taken_before_a_step(nodes: PaperNodes) -> None:
    nodes.dark = {"n2"}
    mine = leases_of(nodes, UPGRADE)
    take_all(mine, ["n1", "n2"], silent)
    assert not lost(mine, ["n1", "n2"], silent)
    nodes.dark = set()
    assert not lost(mine, ["n1", "n2"], silent)
    assert nodes.holders == {"n1": UPGRADE, "n2": UPGRADE}


def test_a_node_whose_port_the_new_lock_changes_is_reached_before_and_after(nodes: PaperNodes) -> None:
    nodes.ports = dict.fromkeys(nodes.names, 22)
    mine = LeaseManager([nodes.lock(port=22), nodes.lock(port=2222)], run_folder(UPGRADE))
    assert mine.take(nodes.names) == {}
    nodes.ports["n2"] = 2222
    nodes.now += 700
    assert mine.lost(nodes.names) == {}
    mine.release()
    assert nodes.holders == {}


NAMED = {"run": "r", "holder": "h", "had_s": 1.0, "silent_s": 0.0}


@pytest.mark.parametrize(
    "result",
    [
        7,
        "x",
        [],
        {},
        NAMED,
        {**NAMED, "left_s": "x"},
        {**NAMED, "left_s": None},
        {**NAMED, "left_s": 1e9},
        {**NAMED, "left_s": float("inf")},
        {**NAMED, "left_s": float("nan")},
        {**NAMED, "left_s": -1},
        {**NAMED, "left_s": 1, "silent_s": float("inf")},
        {**NAMED, "left_s": 1, "had_s": []},
        {**NAMED, "left_s": 1, "had_s": 1e300},
    ],
)
def test_a_lease_that_is_none_is_that_nodes_failure(
    nodes: PaperNodes, result: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = nodes.do
    monkeypatch.setattr(nodes, "do", lambda name, *words: result if name == "n2" else good(name, *words))
    failed = leases_of(nodes).take(nodes.names)
    assert list(failed) == ["n2"]
    assert not isinstance(failed["n2"], Refused)


def test_a_long_name_is_cut_short() -> None:
    result = {**NAMED, "run": "r" * 9999, "holder": "h" * 9999, "left_s": 1.0}
    assert len(str(read_lease(result))) < 300
