"""Examinations and acceptances in the ledger of machines."""

from __future__ import annotations

import pytest

from gpuprov.accept.judge import Acceptance
from gpuprov.doctor.fault import Fault
from gpuprov.doctor.judge import Diagnosis
from gpuprov.errors import Unreachable
from gpuprov.history import History
from gpuprov.history.keeping import keep_acceptances, keep_diagnoses
from gpuprov.history.store import History as Store

FLEET = "/fleet.lock.yml"


def kinds() -> list[tuple[str, str, str]]:
    """Return kind, machine and rule of each event in the ledger."""
    with History() as history:
        return [(event.kind, event.machine, event.what) for event in history.events()]


def test_faults_are_kept_once(capsys: pytest.CaptureFixture[str]) -> None:
    sick = Diagnosis("gpu01", (Fault("broken", "GPU 0 is lost", rule="bus.lost"),), machine="SN7")
    for found in (sick, sick, Diagnosis("gpu01", machine="SN7")):
        keep_diagnoses([found], FLEET, print)
    assert kinds() == [("fault", "SN7", "bus.lost"), ("gone", "SN7", "bus.lost")]
    assert capsys.readouterr().out == ""


def test_a_test_under_load_belongs_to_the_machine_of_the_last_examination() -> None:
    keep_diagnoses([Diagnosis("gpu01", (Fault("broken", "x", rule="a.b"),), machine="SN7")], FLEET, print)
    lost = Acceptance("gpu03", failure=Unreachable("no route"))
    judged = [Acceptance("gpu01"), Acceptance("gpu02"), lost]
    keep_acceptances(judged, FLEET, "run", print)
    assert kinds()[1:] == [
        ("accepted", "SN7", ""),
        ("accepted", "name:gpu02", ""),
        ("tried", "name:gpu03", ""),
    ]


def test_a_node_that_states_anothers_serial_number_ends_no_fault_of_it() -> None:
    sick = Diagnosis("gpu01", (Fault("broken", "x", rule="a.b"),), machine="SN7")
    lies = Diagnosis("gpu02", machine="SN7")
    for found in ([sick], [lies], [sick], [lies], [sick, Diagnosis("gpu03", machine="SN9")]):
        keep_diagnoses(found, FLEET, print)
    assert kinds() == [("fault", "SN7", "a.b")]


def test_a_serial_number_that_two_nodes_state_identifies_neither() -> None:
    sick = (Fault("broken", "x", rule="a.b"),)
    keep_diagnoses([Diagnosis("gpu01", sick, machine="SN7"), Diagnosis("gpu02", machine="SN7")], FLEET, print)
    assert kinds() == [("fault", "name:gpu01", "a.b")]
    keep_diagnoses([Diagnosis("gpu03", sick, machine="SN9")], FLEET, print)
    other = (Fault("broken", "x", rule="c.d"),)
    keep_diagnoses([Diagnosis("gpu04", (*sick, *other), machine="SN9")], FLEET, print)
    keep_acceptances([Acceptance("gpu04")], FLEET, "run", print)
    assert kinds()[1:] == [("fault", "SN9", "a.b"), ("fault", "SN9", "c.d"), ("accepted", "name:gpu04", "")]


def test_an_unwritable_ledger_is_reported_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Store, "record_events", full)
    said: list[str] = []
    keep_diagnoses([Diagnosis("gpu01")], FLEET, said.append)
    assert said == ["this is not in the ledger of machines: [Errno 28] No space left on device"]
