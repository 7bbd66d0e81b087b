"""The header of a repair, fixed at its start: the first entry of its journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from gpuprov.upgrade.header import RUN, header_data
from gpuprov.upgrade.journal import Journal
from gpuprov.upgrade.repair.ladder import Patient
from gpuprov.upgrade.state import Entry


@dataclass(frozen=True)
class RepairHeader:
    """Fixed data of a repair.

    Attributes:
        patients: node → its verdict and rungs, in the order in which nodes are repaired.
        at_once: most nodes that may be out of service at a time.
        already_out: nodes of the fleet that earlier repairs have left out, and that are not among `patients`.
        level: level of the measurement after a rung; None without one.
        patience_s: seconds to wait for jobs on the GPUs of a drained node.
        who: user and machine that started the run.
        bmc_file: path of the file of BMCs; None without one.
    """

    patients: Mapping[str, Patient]
    at_once: int
    level: str | None
    patience_s: float
    who: str
    already_out: tuple[str, ...] = ()
    bmc_file: str | None = None

    def write(self, journal: Journal) -> None:
        """Write the first entry of a journal."""
        journal.write(RUN, "begun", data=asdict(self))


def repair_header(entries: Sequence[Entry]) -> RepairHeader:
    """Return the header of a journal; raises as `header_data`."""
    data = header_data(entries)
    patients = {node: Patient.from_dict(each) for node, each in data["patients"].items()}
    return RepairHeader(**{**data, "patients": patients, "already_out": tuple(data["already_out"])})
