"""Events of examinations and acceptances, added to the ledger of machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuprov.files.runs import now
from gpuprov.history.ledger import Event, last_machine, machine_key, of_diagnosis, sole_serials
from gpuprov.history.store import History

if TYPE_CHECKING:
    from gpuprov.accept.judge import Acceptance
    from gpuprov.doctor.judge import Diagnosis


def keep_diagnoses(found: Iterable[Diagnosis], fleet: str, narrate: Callable[[str], None]) -> None:
    """Add the faults that appeared or are gone. No error is raised: the ledger is not the result of the run.

    Only broken and degraded ones are added. A serial number that several of the nodes state identifies none
    of them.

    Args:
        fleet: the lock's absolute path.
        narrate: called with the message of an error.
    """

    def events(history: History) -> list[Event]:
        new = []
        examined = list(found)
        serials = sole_serials({each.host: each.machine for each in examined})
        for each in examined:
            sure = replace(each, machine=serials[each.host])
            new += of_diagnosis(sure, fleet, now(), history.events(machine_key(sure.machine, sure.host)))
        return new

    _keep(events, narrate)


def keep_acceptances(
    judged: Sequence[Acceptance], fleet: str, run: str, narrate: Callable[[str], None]
) -> None:
    """Add whether nodes passed a load test, or that one had no result. No error is raised.

    A node has the serial number of its last event in the ledger, as the test reads none; not if another node
    of the fleet has the same.
    """

    def events(history: History) -> list[Event]:
        known = sole_serials(last_machine(event for event in history.events() if event.fleet == fleet))
        return [
            Event(
                now(),
                fleet,
                each.node,
                known.get(each.node) or machine_key("", each.node),
                "",
                "tried" if each.failure is not None else "rejected" if each.faults else "accepted",
                ", ".join(sorted({fault.rule for fault in each.faults}))[:200],
                run,
            )
            for each in judged
        ]

    _keep(events, narrate)


def _keep(events: Callable[[History], Sequence[Event]], narrate: Callable[[str], None]) -> None:
    """Add events to the default history; report an error, and raise none."""
    try:
        with History() as history:
            history.record_events(events(history))
    except Exception as error:  # noqa: BLE001 - see above
        narrate(f"this is not in the ledger of machines: {error}")
