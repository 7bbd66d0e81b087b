"""Verdicts, the GPUs that a reset concerns, and which nodes stay out by their history."""

from __future__ import annotations

import json
import re
import tarfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import Fault
from gpuprov.doctor.judge import Diagnosis, rules
from gpuprov.doctor.look import conclude
from gpuprov.doctor.units import GPUS, concerned, gpu_serial, gpus_of
from gpuprov.errors import InvalidInput, NodeFailed, Refused, Silent, Unreachable
from gpuprov.history.ledger import Event
from gpuprov.model.lock import read_lock
from gpuprov.model.rollout import Hook, Hooks, Rollout
from gpuprov.probe.node.main import leave_out_largest
from gpuprov.probe.payload import ANSWER_LIMIT
from gpuprov.ssh.dispatch import DIRECT
from gpuprov.untrusted import ShellLine
from gpuprov.upgrade.journal import NAME, Journal
from gpuprov.upgrade.repair import look
from gpuprov.upgrade.repair.context import RepairContext
from gpuprov.upgrade.repair.header import RepairHeader
from gpuprov.upgrade.repair.ladder import (
    FAULTS,
    LADDERS,
    TREATED,
    Patient,
    patient,
    reset_group,
    verdict_of,
    verdict_of_node,
)
from gpuprov.upgrade.repair.plan import limit, refuse_undrained, with_bmcs, with_history, with_silence
from tests import RECORDED_LOCK
from tests.unit.doctor.machines import NOW, Collectors, as_examined, virtual

NOW_IS = datetime(2026, 1, 31, tzinfo=UTC)
XID = "NVRM: Xid (PCI:0000:00:06): 119, pid=7, name=python, Timeout"
RESET = (ShellLine("sudo nvidia-smi --gpu-reset -i 1"),)


def fault(severity: str, text: str = "GPU 1: broken", mend: tuple[ShellLine, ...] = ()) -> Fault:
    """Return a fault of this severity by the rule errors.xid."""
    return Fault(severity, text, mend=mend, rule="errors.xid")  # type: ignore[arg-type]


def with_pending(collectors: Collectors, gpu: int = 1) -> Collectors:
    """Put a pending row remap into the answer of nvidia-smi for one GPU."""
    said = collectors["smi"]["stdout"]
    parts = said.split("<remapped_row_pending>No")
    assert len(parts) > gpu + 1
    before, after = "<remapped_row_pending>No".join(parts[: gpu + 1]), parts[gpu + 1 :]
    collectors["smi"]["stdout"] = f"{before}<remapped_row_pending>Yes" + "<remapped_row_pending>No".join(
        after
    )
    return collectors


def examined(seen: Examination) -> Patient:
    """Return the verdict on gpu01 by its examination."""
    return patient(conclude("gpu01", seen), seen)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (fault("broken"), "isolate"),
        (fault("broken", mend=RESET), "reset"),
        (fault("degraded", mend=RESET), "reset"),
        (fault("degraded"), "watch"),
        (fault("risk", mend=RESET), "watch"),
        (fault("hint"), "watch"),
    ],
)
def test_the_verdict_of_a_fault_without_a_class(found: Fault, verdict: str) -> None:
    assert verdict_of(found) == verdict


@pytest.mark.parametrize(
    ("stated", "verdict"), [("isolate", "isolate"), ("reset", "reset"), ("watch", "watch"), ("none", "watch")]
)
def test_the_class_of_a_fault_decides(stated: str, verdict: str) -> None:
    found = fault("broken", mend=RESET)
    object.__setattr__(found, "health", stated)
    assert verdict_of(found) == verdict


def test_the_verdict_of_a_node_is_the_worst_and_unknown_is_not_healthy() -> None:
    assert verdict_of_node(Diagnosis("n")) == "healthy"
    assert verdict_of_node(Diagnosis("n", unknown=(("a.b", "no log"),))) == "unknown"
    assert verdict_of_node(Diagnosis("n", (fault("hint"),), (("a.b", "no log"),))) == "unknown"
    both = (fault("broken", mend=RESET), fault("broken"))
    assert verdict_of_node(Diagnosis("n", both, (("a.b", "no log"),))) == "isolate"
    assert verdict_of_node(Diagnosis("n", failure=Silent("timed out"))) == "silent"
    assert verdict_of_node(Diagnosis("n", failure=Unreachable("root@n refused the key"))) == "unknown"
    assert verdict_of_node(Diagnosis("n", failure=NodeFailed("no Python"))) == "unknown"


def test_only_verdicts_with_rungs_change_a_node() -> None:
    assert {verdict for verdict, rungs in LADDERS.items() if rungs} == {"reset", "isolate", "silent"}
    assert all(
        rungs == tuple(r for r in ("reset", "reboot", "power") if r in rungs) for rungs in LADDERS.values()
    )


def test_the_gpu_that_has_the_fault_is_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = as_examined(with_pending(virtual()))
    alone = [gpu for gpu in gpus_of(seen) if gpu.index == 1]
    for state, count in (("N/A", 1), ("Completed", 2)):
        collectors = with_pending(virtual())
        text = collectors["smi"]["stdout"]
        for other in ("Completed", "In Progress", "N/A"):
            text = text.replace(
                f"<fabric>\n\t\t\t<state>{other}</state>", f"<fabric>\n\t\t\t<state>{state}</state>"
            )
        collectors["smi"]["stdout"] = text
        found = examined(as_examined(collectors))
        assert (found.verdict, found.rungs) == ("reset", LADDERS["reset"])
        assert found.units == tuple(gpu_serial(gpu) for gpu in alone)
        assert len(found.gpus) == count, state
        assert alone[0].pci_bus_id in found.gpus


def test_names_of_gpus_in_the_text_of_a_fault() -> None:
    gpus = gpus_of(as_examined(virtual()))
    address = str(gpus[1].pci_address).removesuffix(".0")
    for text, indexes in (
        ("Xid 79 on GPU 1: fell off the bus", [1]),
        ("GPU 1: a row remap is pending", [1]),
        (f"GPU {address}: lost", [1]),
        (f"the driver recommends for GPU {address}: reset", [1]),
        ("GPU 17: no such GPU", []),
        ("GPU 0 and GPU 1", [0, 1]),
        ("no GPU is named", []),
    ):
        assert [gpu.index for gpu in concerned(fault("broken", text), gpus)] == indexes, text


def test_one_node_leaves_room_for_others_in_the_header_of_a_repair() -> None:
    """Limit faults and GPUs, which a node chooses: the header has those of all nodes on one line."""
    collectors = virtual()
    begin, gpu, end = re.split(
        r"(<gpu id=.*?</gpu>)", collectors["smi"]["stdout"], maxsplit=1, flags=re.DOTALL
    )
    collectors["smi"]["stdout"] = begin + gpu * 100 + end
    seen = as_examined(collectors)
    many = tuple(fault("broken", f"GPU {at}: broken", RESET) for at in range(64))
    found = patient(replace(conclude("gpu01", seen), faults=many), seen)
    assert (len(found.faults), len(found.gpus), len(found.present)) == (FAULTS, GPUS, GPUS)


def test_messages_from_before_a_reset_do_not_count() -> None:
    collectors = virtual()
    line = "NVRM: Xid (PCI:0000:00:06): 119, pid=7, name=python, Timeout"
    collectors["kernel_log"]["kept"] = [[NOW - 60, line]]
    seen = as_examined(collectors)
    before = examined(seen)
    assert before.verdict in ("reset", "isolate")
    assert look.not_mended(before, examined(seen))
    assert look.not_mended(before, examined(look.after(seen, NOW - 30))) == ""
    assert look.not_mended(before, examined(look.after(seen, NOW - 90)))


def test_messages_that_are_missing_from_before_a_reset_do_not_count() -> None:
    collectors = virtual()
    line = "NVRM: Xid (PCI:0000:00:06): 119, pid=7, name=python, Timeout"
    collectors["kernel_log"].update(kept=[[NOW - 60, line]], since=NOW - 50)
    seen = as_examined(collectors)
    before = examined(seen)
    assert look.not_mended(before, examined(look.after(seen, NOW - 30))) == ""
    assert "could not judge" in look.not_mended(before, examined(look.after(seen, NOW - 55)))


FORGED: dict[str, Any] = {
    "pci": {"pci": {"error": "lspci failed"}},
    "no lines": {"kernel_log": {"kept": None}},
    "a number": {"kernel_log": {"kept": [5]}},
    "texts": {"kernel_log": {"kept": [["x", "y"]]}},
    "no log": {"kernel_log": 7},
    "no time": {"kernel_log": {"kept": [], "since": "x"}},
}


@pytest.mark.parametrize("forged", FORGED)
def test_one_nodes_answer_is_its_own_failure(
    forged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = read_lock(RECORDED_LOCK)
    good = virtual()
    bad = {**virtual(), "kernel_log": {**good["kernel_log"], "kept": [[NOW - 5, XID]]}, **FORGED[forged]}
    answers = {"good": as_examined(good), "bad": as_examined(bad)}
    monkeypatch.setattr(look, "targets", lambda lock, names: names)
    monkeypatch.setattr(look, "examine", lambda nodes, dispatch: ((each, answers[each]) for each in nodes))
    before = look.first(lock, ["good", "bad"], DIRECT)
    assert before["good"].verdict not in TREATED
    with Journal(tmp_path / NAME) as journal:
        RepairHeader(before, 1, None, 0, "a@b").write(journal)
    context = RepairContext(lock, tmp_path, old=lock, source=tmp_path, lock_path=tmp_path / "fleet.lock.yml")
    for node in answers:
        context.place(node, look.SINCE).write_text("1.0")
    now = look.again(context, ["good", "bad"])
    assert not look.not_mended(before["good"], now["good"])
    if forged != "pci":
        assert look.not_mended(Patient("reset", ("errors.xid",)), now["bad"])
    result = look.bundles(context, ["good", "bad"])
    assert "good" in result.data
    assert {"good", "bad"} == {*result.data, *result.failed}


def test_without_a_list_of_devices_all_gpus_are_reset_together() -> None:
    collectors = with_pending(virtual())
    text = collectors["smi"]["stdout"]
    for state in ("Completed", "In Progress"):
        text = text.replace(f"<state>{state}</state>", "<state>N/A</state>")
    collectors["smi"]["stdout"] = text
    seen = as_examined(collectors)
    named = gpus_of(seen)[1:2]
    assert reset_group(seen, named) == list(named)
    blind = as_examined({**collectors, "pci": {"error": "lspci failed"}})
    assert reset_group(blind, named) == list(gpus_of(blind))


def test_repairs_of_a_serial_number_that_two_nodes_state_are_of_neither() -> None:
    sick = Patient("reset", machine="SN7", rungs=LADDERS["reset"])
    events = [mended(1), mended(2)]
    assert with_history({"gpu01": sick}, events, NOW_IS)["gpu01"].stays
    both = with_history({"gpu01": sick, "gpu02": sick}, events, NOW_IS)
    assert [(each.stays, each.machine) for each in both.values()] == [("", ""), ("", "")]


def test_more_silent_nodes_than_may_be_out_are_unknown() -> None:
    found = {name: Patient("silent", faults=("no SSH",), rungs=LADDERS["silent"]) for name in ("a", "b")}
    found["c"] = Patient("reset", rungs=LADDERS["reset"])
    assert with_silence(found, 2) == found
    fewer = with_silence(found, 1)
    assert [(each.verdict, each.rungs) for each in fewer.values()] == [
        ("unknown", ()),
        ("unknown", ()),
        ("reset", LADDERS["reset"]),
    ]
    assert fewer["a"].faults[1].startswith("2 nodes do not answer, expected at most 1")


def test_a_node_that_nothing_is_known_about_is_not_mended() -> None:
    before = Patient("reset", rules=("errors.xid",))
    assert look.not_mended(before, Patient("unknown", faults=("its answer could not be read",)))


def test_a_rule_that_cannot_judge_any_more_has_found_nothing_mended() -> None:
    rules()  # a rule that is not known counts
    before = Patient("reset", rules=("errors.xid",), unknown=("host.clock", "errors.xid"))
    assert look.not_mended(before, Patient("unknown", unknown=("host.limits", "cuda.held"))) == ""
    assert look.not_mended(before, Patient("unknown", unknown=("host.clock",))) == ""
    assert (
        look.not_mended(before, Patient("watch", unknown=("bus.lost",)))
        == "unknown: bus.lost could not judge"
    )
    assert look.not_mended(before, Patient("unknown", unknown=("errors.xid",))).startswith(
        "unknown: errors.xid"
    )


def test_what_users_make_too_large_to_be_read_leaves_a_node_mended() -> None:
    """Leave out what is about users only; a node whose whole answer is refused would get the next rung."""
    collectors = virtual()
    collectors["programs"]["holders"] = ["x" * ANSWER_LIMIT]
    collectors["frameworks"] = ["y" * (ANSWER_LIMIT - 1_000_000)]
    leave_out_largest(collectors)
    assert len(json.dumps(collectors)) < ANSWER_LIMIT
    now = examined(as_examined(collectors))
    assert now.verdict == "unknown"
    assert look.not_mended(Patient("reset", rules=("errors.xid",)), now) == ""


def mended(days: float, unit: str = "", node: str = "gpu01", run: str = "") -> Event:
    """Return the event of a repair some days ago."""
    at = (NOW_IS - timedelta(days=days)).isoformat()
    return Event(at, "f", node, "SN7", unit, "mended", "errors.xid", run or str(days))


@pytest.mark.parametrize(
    ("events", "stays"),
    [
        ([], False),
        ([mended(3)], False),
        ([mended(3), mended(20)], True),
        ([mended(3, node="other"), mended(20)], True),
        ([mended(3), mended(91)], False),
        ([mended(3, "A"), mended(3, "B", run="3")], False),
        ([mended(3, "A"), mended(20, "A")], True),
        ([mended(3, "GONE"), mended(20, "GONE")], False),
    ],
)
def test_a_node_that_comes_back_a_third_time_stays_out(events: list[Event], stays: bool) -> None:
    """Count by the node's serial number, and not repairs of GPUs that it no longer has."""
    before = Patient("reset", machine="SN7", present=("A", "B"), rungs=LADDERS["reset"])
    [found] = with_history({"gpu01": before}, events, NOW_IS).values()
    assert (bool(found.stays), found.rungs == ()) == (stays, stays)
    [sound] = with_history({"gpu01": Patient("watch", machine="SN7")}, events, NOW_IS).values()
    assert sound.stays == ""


def test_without_a_bmc_there_is_no_power_cycle() -> None:
    stated = {
        name: Patient(verdict, rungs=LADDERS[verdict])
        for name, verdict in (("a", "isolate"), ("b", "silent"))
    }  # type: ignore[index]
    found = with_bmcs(stated, ())
    assert (found["a"].rungs, found["a"].stays) == (("reboot",), "")
    assert (found["b"].rungs, bool(found["b"].stays)) == ((), True)
    assert with_bmcs(stated, ("a", "b")) == stated


def test_nodes_that_jobs_could_start_on_are_refused() -> None:
    sick = {"gpu01": Patient("reset", rungs=LADDERS["reset"])}
    with pytest.raises(Refused, match=r"^no drain hook takes gpu01 out of service"):
        refuse_undrained(Rollout(), sick, drained=False)
    refuse_undrained(Rollout(), sick, drained=True)
    refuse_undrained(Rollout(hooks=Hooks(drain=Hook(use="slurm"))), sick, drained=False)
    refuse_undrained(Rollout(), {"gpu01": Patient("watch")}, drained=False)


@pytest.mark.parametrize(
    ("serial", "stated", "most"), [(["10%"], None, 6), ([3], None, 3), ([3], 1, 1), (["1%"], None, 1)]
)
def test_the_limit(serial: list[int | str], stated: int | None, most: int) -> None:
    """Check how many nodes may be out of service at a time."""
    assert limit(Rollout(serial=serial), stated, 64) == most


def test_a_bundle_has_what_was_tried(tmp_path: Path) -> None:
    """Check that a repair's bundle contains the steps tried, also of a node without an answer, and that no
    file is overwritten.
    """
    seen = as_examined(virtual())
    tried = {"schema": "gpuprov.repair-tried/1", "tried": ["reset"]}
    from gpuprov.doctor.bundle.bundle import pack

    for number, answer in enumerate((seen, Unreachable("no route"))):
        pack(tmp_path / f"{number}.tar.gz", look._with(answer, tried))
        with tarfile.open(tmp_path / f"{number}.tar.gz") as archive:
            names = archive.getnames()
            file = archive.extractfile("gpuprov-bundle/TRIED.json")
            assert file is not None
            assert json.load(file) == tried
        assert ("gpuprov-bundle/facts.json" in names) == (answer is seen)
    with pytest.raises(InvalidInput):
        pack(tmp_path / "0.tar.gz", look._with(seen, tried))
