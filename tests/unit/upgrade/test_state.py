"""Journal as a state machine: after any failures and crashes, each node reaches a named end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprov.errors import InvalidInput, Refused
from gpuprov.upgrade.journal import Journal, parse, read
from gpuprov.upgrade.state import FORWARD, Entry, NodeProgress, out_of_service, progress_by_node

NODE = "n1"


def drive(story: NodeProgress, fails: set[str], deaths: list[int]) -> tuple[NodeProgress, list[str]]:
    """Take every step; those in `fails` fail, and the controller dies at the moments in `deaths`."""
    taken: list[str] = []
    entries: list[Entry] = []
    moment = 0

    def say(step: str, event: str) -> bool:
        """Record an event of the step; return whether the controller survives it."""
        nonlocal moment
        entries.append(
            Entry(len(entries) + 1, "", step, event, NODE, "broken" if event == "failed" else None)
        )
        moment += 1
        return moment not in deaths

    while True:
        now = progress_by_node(entries, [NODE], course=story.course, hold=story.hold)[NODE]
        step = now.next_step
        if step is None:
            return now, taken
        assert len(taken) < 100, "no end"
        if not say(step, "begun"):
            continue
        taken.append(step)
        say(step, "failed" if step in fails else "done")


steps = st.sampled_from([*FORWARD, "restore", "mend", "confirm"])


@given(
    st.sampled_from(["forward", "back"]),
    st.booleans(),
    st.sets(steps),
    st.lists(st.integers(1, 30), max_size=5),
)
def test_every_story_ends_somewhere_that_has_a_name(course, hold, fails, deaths) -> None:  # type: ignore[no-untyped-def]
    story, taken = drive(NodeProgress(course, hold), fails, deaths)
    assert story.end is not None
    if story.end == "new":
        assert "restore" not in taken if course == "back" else "verify" in taken
    if story.end == "old" and story.touched and "restore" in taken:
        assert "confirm" in taken
    if story.end == "stuck":
        assert fails & {"restore", "mend", "confirm"}


@given(st.booleans(), st.sets(steps), st.lists(st.integers(1, 30), max_size=5))
def test_a_death_changes_no_end(hold: bool, fails: set[str], deaths: list[int]) -> None:
    assert (
        drive(NodeProgress("forward", hold), fails, deaths)[0].end
        == drive(NodeProgress("forward", hold), fails, [])[0].end
    )


@pytest.mark.parametrize(
    ("fails", "hold", "taken", "end"),
    [
        ((), False, FORWARD, "new"),
        (("record",), False, ("record",), "old"),
        (("drain",), False, ("record", "snapshot", "drain", "resume"), "old"),
        (
            ("apply",),
            False,
            ("record", "snapshot", "drain", "apply", "restore", "mend", "confirm", "resume"),
            "old",
        ),
        (("verify",), True, ("record", "snapshot", "drain", "apply", "reboot", "verify"), "held"),
        (("resume",), False, FORWARD, "new"),
        (
            ("reboot", "mend"),
            False,
            ("record", "snapshot", "drain", "apply", "reboot", "restore", "mend"),
            "stuck",
        ),
    ],
)
def test_stories(fails: tuple[str, ...], hold: bool, taken: tuple[str, ...], end: str) -> None:
    """Check the steps and the end of a node in which certain steps fail."""
    story, steps_taken = drive(NodeProgress("forward", hold), set(fails), [])
    assert (tuple(steps_taken), story.end) == (taken, end)


def test_the_way_back_alone() -> None:
    story, taken = drive(NodeProgress("back"), set(), [])
    assert (taken, story.end) == (["drain", "restore", "mend", "confirm", "resume"], "old")


def test_a_way_back_that_could_not_begin_leaves_the_node_serving_on_the_new_set() -> None:
    story, taken = drive(NodeProgress("back"), {"drain"}, [])
    assert (taken, story.end) == (["drain", "resume"], "new")


def test_who_is_out_of_service_when() -> None:
    result = [
        ("drain", "begun", "n1"),
        ("drain", "begun", "n2"),
        ("drain", "begun", "n1"),
        ("apply", "begun", "n1"),
        ("resume", "begun", "n2"),
        ("resume", "done", "n2"),
        ("resume", "failed", "n1"),
    ]
    entries = [Entry(number, str(number), *each) for number, each in enumerate(result, 1)]  # type: ignore[arg-type]
    assert [(at, sorted(out)) for at, out in out_of_service(entries)] == [
        ("1", ["n1"]),
        ("2", ["n1", "n2"]),
        ("6", ["n1"]),
    ]


def test_half_a_line_at_the_end_is_no_entry(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.write("apply", "begun", ["n1", "n2"])
        journal.write("apply", "done", ["n1"])
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        with Journal(path) as journal:
            assert len(journal.entries) == whole[:cut].count(b"\n")
            journal.write("apply", "failed", ["n2"], "why")
        assert read(tmp_path)[-1].event == "failed"


def test_entries_missing_in_the_middle_are_seen() -> None:
    lines = [json.dumps({"number": number, "at": "", "step": "apply", "event": "begun"}) for number in (1, 3)]
    with pytest.raises(InvalidInput, match="entry 3; expected entry 2"):
        parse("".join(f"{line}\n" for line in lines).encode(), "journal")
    with pytest.raises(InvalidInput, match="journal:1: not an entry"):
        parse(b"[]\n", "journal")


def test_one_process_writes(tmp_path: Path) -> None:
    """Check that a second process cannot open the journal."""
    with Journal(tmp_path / "journal.jsonl"), pytest.raises(Refused, match="another gpuprov"):
        Journal(tmp_path / "journal.jsonl")


def test_a_reason_is_shortened(tmp_path: Path) -> None:
    """Shorten it: a journal is read as a whole, and nodes choose their reasons."""
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.write("converge", "failed", ["gpu1"], "x" * 900_000)
        journal.write("run", "begun", data={"patients": {"gpu1": {"faults": ("x" * 900_000,), "at": 1}}})
        assert len(str(journal.entries[0].data)) == 1000
        assert journal.entries[1].data["patients"]["gpu1"]["at"] == 1
    assert journal.path.stat().st_size < 3000
