"""Ladders: verdict of a node → the rungs that can mend it, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import Fault
from gpuprov.doctor.judge import Diagnosis
from gpuprov.doctor.units import concerned, gpu_serial, gpus_of, machine_serial
from gpuprov.errors import GpuprovError, Silent
from gpuprov.probe.parse.gpu import Gpu

Verdict = Literal["healthy", "watch", "unknown", "reset", "isolate", "silent"]
"""From the best to the worst. `unknown`: a rule could not judge; `silent`: nothing answers at the node."""
VERDICTS: tuple[Verdict, ...] = ("healthy", "watch", "unknown", "reset", "isolate", "silent")
Rung = Literal["reset", "reboot", "power"]
"""A reset of GPUs by nvidia-smi, a reboot by the system, a power cycle by the BMC."""
LADDERS: Mapping[Verdict, tuple[Rung, ...]] = {
    "healthy": (),
    "watch": (),
    "unknown": (),
    "reset": ("reset", "reboot", "power"),
    "isolate": ("reboot", "power"),
    "silent": ("power",),
}
"""The only table of rungs. A verdict without rungs changes nothing on the node, and does not drain it."""
TREATED: frozenset[Verdict] = frozenset(verdict for verdict, rungs in LADDERS.items() if rungs)
"""Verdicts with a ladder: a node that has another one after a rung is mended, except `unknown`."""
FAULTS = 16
"""Maximum number of a node's faults in the journal, which has those of all nodes on one line."""
_JOINED = ("completed", "in progress", "not started")
"""States of a GPU that a fabric of switches joins, or is to join (nvmlGpuFabricInfo_t)."""


@dataclass(frozen=True)
class Patient:
    """A node with its verdict, fixed at the start of a run.

    Attributes:
        rules: rules of the doctor whose faults make the verdict.
        faults: texts of these faults, at most `FAULTS`.
        gpus: bus addresses of the GPUs to reset, of the whole group that is reset together.
        machine: serial number of the node; empty if it has none.
        units: serial numbers of the GPUs that have the faults; empty if no fault names a GPU.
        rungs: rungs to try.
        stays: why the node stays out without any rung; empty if it does not.
        present: serial numbers of all GPUs of the node.
        unknown: rules that could not judge.
    """

    verdict: Verdict
    rules: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    machine: str = ""
    units: tuple[str, ...] = ()
    rungs: tuple[Rung, ...] = ()
    stays: str = ""
    present: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Patient:
        """Return the patient of `as_dict`, after a journal has made lists of the tuples."""
        stated: dict[str, Any] = {
            name: tuple(each) if isinstance(each, list) else each for name, each in data.items()
        }
        return cls(**stated)


def verdict_of(fault: Fault) -> Verdict:
    """Return the verdict of one fault: the class that the doctor's table gives it (`health`).

    Without a class, a fault whose own lines reset a GPU needs that; otherwise the severity decides.
    """
    stated = getattr(fault, "health", None)
    if stated is not None:
        return "watch" if stated == "none" else cast("Verdict", stated)
    if fault.severity in ("risk", "hint"):
        return "watch"
    if any("--gpu-reset" in line for line in fault.mend):
        return "reset"
    return "isolate" if fault.severity == "broken" else "watch"


def verdict_of_node(found: Diagnosis) -> Verdict:
    """Return the worst verdict of a diagnosis; of one without an examination `silent` or `unknown`.

    A node that answers, but not as expected, is unknown: with a refused key, another host key or a name that
    does not resolve, it may be healthy.
    """
    if found.failure is not None:
        return "silent" if isinstance(found.failure, Silent) else "unknown"
    verdicts: list[Verdict] = [verdict_of(fault) for fault in found.faults]
    worst: Verdict = max(verdicts, key=VERDICTS.index, default="healthy")
    return "unknown" if worst in ("healthy", "watch") and found.unknown else worst


def patient(found: Diagnosis, seen: Examination | GpuprovError) -> Patient:
    """Return a node's verdict with the rungs that its ladder has, and the GPUs that a reset concerns.

    Only faults with the node's verdict count. Without an examination, or with a verdict that is not treated,
    there are no GPUs.
    """
    verdict, unknown = verdict_of_node(found), tuple(rule for rule, _ in found.unknown)
    faults = [fault for fault in found.faults if verdict_of(fault) == verdict]
    texts = tuple(fault.text for fault in faults[:FAULTS])
    if isinstance(seen, GpuprovError) or verdict not in TREATED:
        said = (str(found.failure),) if found.failure else texts
        machine = "" if isinstance(seen, GpuprovError) else machine_serial(seen)
        rules = tuple(dict.fromkeys(fault.rule for fault in faults))
        rungs = LADDERS[verdict]
        return Patient(verdict, rules, said, machine=machine, rungs=rungs, unknown=unknown)
    named = [gpu for fault in faults for gpu in concerned(fault, gpus_of(seen))]
    return Patient(
        verdict,
        tuple(dict.fromkeys(fault.rule for fault in faults)),
        texts,
        tuple(gpu.pci_bus_id for gpu in reset_group(seen, named) if gpu.pci_bus_id),
        machine_serial(seen),
        tuple(dict.fromkeys(serial for gpu in named if (serial := gpu_serial(gpu)))),
        LADDERS[verdict],
        present=tuple(filter(None, map(gpu_serial, gpus_of(seen)))),
        unknown=unknown,
    )


def reset_group(seen: Examination, named: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that are reset together: all of the node with NVSwitches, before Ampere, or if no fault
    names a GPU; otherwise the named ones.
    """
    gpus = gpus_of(seen)
    switched = any((gpu.fabric_state or "").lower() in _JOINED for gpu in gpus)
    if not named or switched or _may_have_switches(seen) or any(_before_ampere(gpu) for gpu in named):
        return list(gpus)
    return [gpu for gpu in gpus if gpu in named]


def _may_have_switches(seen: Examination) -> bool:
    """Return whether a node has NVSwitches, or its PCI devices could not be read."""
    try:
        return any(device.is_nvswitch for device in seen.pci)
    except GpuprovError:
        return True


def _before_ampere(gpu: Gpu) -> bool:
    """Return whether a GPU's architecture is older than Ampere, or not known."""
    return gpu.architecture in (None, "Maxwell", "Pascal", "Volta", "Turing")
