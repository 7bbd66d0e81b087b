"""Search for a run: by the end of its id, the latest, the latest that changed a node."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from gpuprov.errors import InvalidInput, Refused
from gpuprov.files.runs import make_folder, new_id, state_dir, verb_of
from gpuprov.model.lock import read_lock
from gpuprov.upgrade.context import FLEET, is_of_fleet, pack, unpack
from gpuprov.upgrade.find import find_run, find_unfinished, find_upgrade
from gpuprov.upgrade.journal import NAME, Journal
from tests import RECORDED_LOCK


def a_run(name: str, changed: Iterable[str] = (), *, over: bool = True) -> Path:
    """Write the journal of an upgrade that changed these nodes; return its folder."""
    folder = make_folder(state_dir() / "runs" / name)
    with Journal(folder / NAME) as journal:
        journal.write("run", "begun")
        journal.write("apply", "begun", changed)
        if over:
            journal.write("run", "done")
    return folder


def test_a_run_is_asked_its_verb_by_one_function() -> None:
    assert verb_of(new_id("rollback")) == "rollback"


def test_a_run_is_found_by_the_end_of_its_id_among_those_of_its_verb() -> None:
    first = a_run("20260101-000000-upgrade-aaaa")
    last = a_run("20260102-000000-upgrade-bbbb")
    a_run("20260103-000000-rollback-aaaa")
    make_folder(state_dir() / "runs" / "20260104-000000-upgrade-cccc")  # refused before the start: no journal
    assert find_run("aaaa", "upgrade") == first
    assert find_run("latest", "upgrade") == last
    with pytest.raises(InvalidInput, match="2 runs match"):
        find_run("aaaa", "upgrade", "rollback")


def test_only_a_run_without_an_end_is_resumed() -> None:
    died = a_run("20260101-000000-upgrade-aaaa", over=False)
    a_run("20260102-000000-upgrade-bbbb")
    assert find_unfinished("aaaa", "upgrade") == died
    with pytest.raises(InvalidInput, match="20260102-000000-upgrade-bbbb has ended"):
        find_unfinished("latest", "upgrade")


@pytest.mark.parametrize("verb", ["upgrade", "rollback", "repair"])
def test_the_latest_run_is_one_of_the_same_fleet(tmp_path: Path, verb: str) -> None:
    ours, other = tmp_path / "ours/fleet.yml", tmp_path / "other/fleet.yml"
    died = a_run(f"20260101-000000-{verb}-aaaa", over=False)
    theirs = a_run(f"20260102-000000-{verb}-bbbb", over=False)
    (died / FLEET).write_text(str(ours))
    (theirs / FLEET).write_text(str(other))
    assert find_unfinished("latest", verb, ours) == died
    assert find_unfinished("latest", verb, other) == theirs
    assert find_unfinished("bbbb", verb, ours) == theirs, "one that is named"
    with pytest.raises(InvalidInput, match=r"no run of .* is 'latest'"):
        find_unfinished("latest", verb, tmp_path / "fleet.yml")


def test_a_rollback_undoes_the_latest_upgrade_that_changed_a_node() -> None:
    older = a_run("20260101-000000-upgrade-aaaa", ["n1", "n2"])
    newer = a_run("20260102-000000-upgrade-bbbb", ["n3"])
    assert find_upgrade(None, ["n2", "n4"]) == (older, ["n2"])
    assert find_upgrade("bbbb", ["n2", "n3"]) == (newer, ["n3"])
    with pytest.raises(InvalidInput, match="20260102-000000-upgrade-bbbb did not touch n2"):
        find_upgrade("bbbb", ["n2"])
    with pytest.raises(InvalidInput, match="no upgrade run from here has touched n4"):
        find_upgrade(None, ["n4"])


def test_a_rollback_undoes_no_upgrade_of_another_fleet_unless_it_is_named() -> None:
    other = a_run("20260101-000000-upgrade-aaaa", ["n1"])
    (other / FLEET).write_text("/srv/a/fleet.yml")
    with pytest.raises(InvalidInput, match="no upgrade run from here has touched n1"):
        find_upgrade(None, ["n1"], Path("/srv/b/fleet.yml"))
    assert find_upgrade(None, ["n1"], Path("/srv/a/fleet.yml")) == (other, ["n1"])
    assert find_upgrade("aaaa", ["n1"], Path("/srv/b/fleet.yml")) == (other, ["n1"])


def a_rollback(name: str, source: str, returned: Iterable[str], failed: Iterable[str] = ()) -> Path:
    """Write the journal of a rollback of a run; return its folder."""
    folder = make_folder(state_dir() / "runs" / name)
    with Journal(folder / NAME) as journal:
        journal.write("run", "begun", data={"source": source})
        for step, nodes in (("restore", [*returned, *failed]), ("confirm", list(returned))):
            journal.write(step, "begun", nodes)
            journal.write(step, "done", nodes)
    return folder


def test_a_second_rollback_says_that_it_is_done_already() -> None:
    upgrade = a_run("20260101-000000-upgrade-aaaa", ["n1", "n2", "n3"])
    a_rollback("20260102-000000-rollback-bbbb", upgrade.name, ["n1", "n2"], failed=["n3"])
    assert find_upgrade(None, ["n1", "n2", "n3"]) == (upgrade, ["n3"])
    for name in (None, "aaaa"):
        with pytest.raises(Refused, match=r"^n\[1-2\]: already returned .*aaaa, by 20260102-.*bbbb"):
            find_upgrade(name, ["n1", "n2"])


def test_a_node_that_was_upgraded_again_can_be_returned_again() -> None:
    older = a_run("20260101-000000-upgrade-aaaa", ["n1", "n2"])
    a_rollback("20260102-000000-rollback-bbbb", older.name, ["n1", "n2"])
    newer = a_run("20260103-000000-upgrade-cccc", ["n1"])
    assert find_upgrade(None, ["n1"]) == (newer, ["n1"])
    assert find_upgrade("aaaa", ["n1", "n2"]) == (older, ["n1"])


def test_a_run_between_locks_of_two_folders_is_of_both(tmp_path: Path) -> None:
    old, new = (read_lock(RECORDED_LOCK).of_fleet(tmp_path / name / "fleet.yml") for name in ("old", "new"))
    folder = state_dir() / "runs/20260101-000000-upgrade-aaaa"
    pack(folder, old, new)
    assert [is_of_fleet(folder, each) for each in (old.fleet, new.fleet, tmp_path / "fleet.yml")] == [
        True,
        True,
        False,
    ]
    assert {lock.fleet for lock in unpack(folder)} == {new.fleet}
