"""Public reports of faults as recorded machines: what each machine showed, and the rule that names its cause.

A file of `tests/recorded/reports` is a list of reports, each a healthy machine with changes. Values are
facts of the report: log lines, answers of tools, versions. `scripts/catalog case` adds a machine's whole
facts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpuprov.doctor.fault import Fault
from gpuprov.doctor.judge import Diagnosis, diagnose
from tests import ROOT
from tests.unit.doctor.faults import FIRST, only_one_gpu, setting
from tests.unit.doctor.machines import (
    HEALTHY,
    Collectors,
    as_examined,
    bare_metal,
    edit_smi,
    holder,
    log,
    package,
    unit,
    unload,
)

FOLDER = ROOT / "tests/recorded/reports"
LOOKED_AT, CASES = "looked-at.json", "cases"
SETS = (
    *(LOOKED_AT, "held-out.json", "later.json", "latest.json", "newest.json", "sampled.json", "recent.json"),
    "unread.json",
    "unseen.json",
    "untried.json",
    "unmet.json",
    "unheard.json",
    "untold.json",
    CASES,
)
"""All sets of reports, in the order in which they were collected."""
ALARMS = ("broken", "degraded", "risk")
RESULTS = ("named", "near", "silent", "wrong")


@dataclass(frozen=True)
class Report:
    """One report.

    Args:
        source: address of the report.
        shows: what the machine showed and why, in a sentence.
        rules: rules that name the cause.
        says: text that the fault must contain, such as the code of an Xid.
        near: rules that concern the same part of the machine.
        changes: name of a change → its value; or the collectors of a whole machine.
    """

    source: str
    shows: str
    rules: tuple[str, ...]
    says: str
    near: tuple[str, ...]
    changes: dict[str, Any]

    def machine(self) -> Collectors:
        """Return the collectors of the machine."""
        if "collectors" in self.changes:
            whole: Collectors = self.changes["collectors"]
            return whole
        result = HEALTHY[self.changes["machine"]]() if "machine" in self.changes else bare_metal()
        for name, value in self.changes.items():
            if name != "machine":
                CHANGES[name](result, value)
        return result

    def diagnosis(self) -> Diagnosis:
        """Return the doctor's diagnosis of the machine."""
        return diagnose(as_examined(self.machine()))


def reports(name: str) -> list[Report]:
    """Return the reports of a file, or those of the files in a folder."""
    path = FOLDER / name
    paths = sorted(path.glob("*.json")) if path.is_dir() else [path] if path.exists() else []
    rows = [row for each in paths for row in _rows(json.loads(each.read_text("utf-8")))]
    return [
        Report(
            row.pop("source"),
            row.pop("shows"),
            tuple(row.pop("rules")),
            row.pop("says", ""),
            tuple(row.pop("near", ())),
            row,
        )
        for row in rows
    ]


def _rows(document: Any) -> Iterator[dict[str, Any]]:
    """Yield the items of a list, or the document itself if it is no list."""
    yield from document if isinstance(document, list) else [document]


def judged(report: Report) -> tuple[str, tuple[Fault, ...]]:
    """Return the result, of `RESULTS`, and the faults.

    `named`: a rule of the report comes first. `near`: it comes later, or a rule of `near` comes first.
    `silent`: there is no fault beyond hints. `wrong`: another fault comes first.
    """
    faults = report.diagnosis().faults
    mine = [fault for fault in faults if fault.rule in report.rules and report.says in _text(fault)]
    if faults and faults[0] in mine:
        return "named", faults
    if mine or (faults and faults[0].rule in (*report.rules, *report.near)):
        return "near", faults
    if not any(fault.severity in ALARMS for fault in faults):
        return "silent", faults
    return "wrong", faults


def _text(fault: Fault) -> str:
    """Return text and cause of a fault."""
    return " ".join((fault.text, fault.cause))


def _device(result: Collectors, value: str) -> None:
    """Give all GPUs the PCI id `10de:1b82`."""
    vendor, _, device = value.partition(":")
    for row in result["pci"]:
        if row[1] == "0x10de" and row[3].startswith("0x03"):
            row[1], row[2] = f"0x{vendor}", f"0x{device}"


def _driver(result: Collectors, value: str) -> None:
    """Give the loaded module, the module on disk, DKMS, packages and libraries this version."""
    for name in ("modules", "disk_modules", "dkms", "libraries", "packages"):
        text = json.dumps(result[name]).replace("580.159.04", value)
        result[name] = json.loads(text)


def _flavour(result: Collectors, value: str) -> None:
    """Make the loaded module and the one on disk open or proprietary."""
    text = result["modules"]["driver"] or ""
    version = re.search(r"\d{3}\.[\d.]+", text)
    number = version[0] if version else "580.159.04"
    shown = {
        "open": f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {number}  Release Build",
        "proprietary": f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {number}  Release Build",
    }
    if text:
        result["modules"]["driver"] = shown[value]
    licence = {"open": "Dual MIT/GPL", "proprietary": "NVIDIA"}[value]
    for kernel, found in result["disk_modules"].items():
        result["disk_modules"][kernel] = re.sub(r"license: .*", f"license:        {licence}", found)


def _kernel(result: Collectors, value: str) -> None:
    """Give the running kernel, and what belongs to it, another release."""
    before = result["system"]["kernel"]
    for name in ("system", "kernels", "disk_modules", "dkms"):
        result[name] = json.loads(json.dumps(result[name]).replace(before, value))


def _answer(result: Collectors, value: str) -> None:
    """Make nvidia-smi fail with this output."""
    result["smi"] = {"rc": 9, "stdout": value, "stderr": ""}


def _without_build(result: Collectors, lines: list[str]) -> None:
    """Leave the driver's source in DKMS with this log of a build, and no module."""
    kernel, [name, version, *_] = result["system"]["kernel"], result["dkms"][0]
    result["disk_modules"], result["dkms"] = {kernel: ""}, [[name, version, "", "", "added"]]
    result["dkms_log"] = {f"/var/lib/dkms/{name}/{version}/build/make.log": lines}


def _each(change: Callable[..., None]) -> Callable[[Collectors, Any], None]:
    """Return a change for a mapping of arguments, or for a list of them."""

    def apply(result: Collectors, values: Any) -> None:
        for row in values.items() if isinstance(values, dict) else values:
            change(result, *(row if isinstance(row, list | tuple) else [row]))

    return apply


def _set(result: Collectors, path: str, value: Any) -> None:
    """Set the value at a dotted path."""
    setting(path, value)(result)


def _package(result: Collectors, name: str, value: Any) -> None:
    """Install a package, in a version if the value is a list."""
    package(result, name, *(value if isinstance(value, list) else [value]))


def _replace(result: Collectors, pattern: str, text: str) -> None:
    """Replace the first match in nvidia-smi's output."""
    edit_smi(result, pattern, text, count=1)


def _replace_all(result: Collectors, pattern: str, text: str) -> None:
    """Replace all matches in nvidia-smi's output."""
    edit_smi(result, pattern, text)


def _login(result: Collectors, name: str, value: str) -> None:
    """Set a variable for every login."""
    result["environment"].setdefault("/etc/profile.d/gpu.sh", {})[name] = value


def _append_smi(result: Collectors, text: str) -> None:
    """Add text below nvidia-smi's answer."""
    result["smi"]["stdout"] += text


def _lost(result: Collectors, value: str) -> None:
    """Make a device on the bus unreadable, by default the first GPU."""
    result["pci_links"][value or FIRST][0].update(lost=True)


def _switches(result: Collectors, count: int) -> None:
    """Leave only the first `count` NVSwitches on the bus."""
    rows = [row for row in result["pci"] if row[3] == "0x068000"]
    result["pci"] = [row for row in result["pci"] if row not in rows[count:]]


def _bound(result: Collectors, driver: str) -> None:
    """Bind all GPUs on the bus to a driver."""
    for row in result["pci"]:
        if row[3].startswith("0x03"):
            row[7] = driver


CHANGES: dict[str, Callable[[Collectors, Any], None]] = {
    "device": _device,
    "driver": _driver,
    "kernel": _kernel,
    "flavour": _flavour,
    "unloaded": lambda result, value: unload(result, *([value] if isinstance(value, str) else [])),
    "without_build": _without_build,
    "answer": _answer,
    "append_smi": _append_smi,
    "one_listed": lambda result, _: only_one_gpu(result),
    "bound": _bound,
    "lost": _lost,
    "switches": _switches,
    "log": _each(log),
    "smi": _each(_replace),
    "smi_all": _each(_replace_all),
    "packages": _each(_package),
    "units": _each(unit),
    "set": _each(_set),
    "login": _each(_login),
    "program": lambda result, value: result["programs"]["holders"].append(holder(**value)),
    "hcas": lambda result, value: result.update(hcas=value),
}
"""Changes of a machine, by their name in a report; they are applied in the report's order."""


def healthy_logs() -> list[tuple[str, list[str]]]:
    """Return source and lines of kernel logs of machines whose GPUs work."""
    paths = sorted(FOLDER.glob("healthy-*.json"))
    rows = [row for path in paths for row in json.loads(path.read_text("utf-8"))]
    return [(row["source"], row["log"]) for row in rows]
