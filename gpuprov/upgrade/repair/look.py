"""The doctor before and during a repair: verdicts of nodes, and bundles of those that stay out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gpuprov.doctor.bundle.bundle import Bundle, compose, pack
from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import RULES, is_of_gpus
from gpuprov.doctor.judge import Diagnosis
from gpuprov.doctor.look import conclude, examine
from gpuprov.errors import GpuprovError
from gpuprov.model.lock import Lock
from gpuprov.ssh.contained import contained
from gpuprov.ssh.dispatch import Dispatch
from gpuprov.ssh.transport import targets
from gpuprov.untrusted.numbers import finite
from gpuprov.upgrade.repair.context import RepairContext
from gpuprov.upgrade.repair.ladder import TREATED, Patient, patient
from gpuprov.upgrade.repair.result import Result

SINCE = "since"
"""Name of the file with the node's time of its last reset: the log before it is about the former state."""
TRIED = "TRIED.json"
SERIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,63}")
_MORE = (
    f"{TRIED} has the serial numbers of the node and of the GPUs with the faults, which a return asks for\n"
)


def first(lock: Lock, names: Sequence[str], dispatch: Dispatch) -> dict[str, Patient]:
    """Examine nodes; return node → its verdict and ladder, in the order of `names`; `unknown` for one that
    fails.
    """
    found = {name: _judged(name, seen) for name, seen in examine(targets(lock, names), dispatch=dispatch)}
    return {name: found[name] for name in names}


def again(context: RepairContext, names: Sequence[str]) -> dict[str, Patient]:
    """Examine nodes after a rung, as `first`, without messages of the kernel before a node's last reset."""
    answers = examine(targets(context.lock, names), dispatch=context.options.dispatch)
    found = {name: _judged(name, seen, context.place(name, SINCE)) for name, seen in answers}
    return {name: found[name] for name in names}


def _judged(name: str, answer: Examination | GpuprovError, reset: Path | None = None) -> Patient:
    """Return a node's verdict and ladder; `unknown` if its answer cannot be read.

    Args:
        reset: file with the time of the node's last reset, which may not exist.
    """

    def judge() -> Patient:
        seen = answer
        if isinstance(seen, Examination) and reset is not None and reset.exists():
            seen = after(seen, float(reset.read_text()))
        return patient(conclude(name, seen), seen)

    found = contained(name, judge)
    return patient(Diagnosis(name, failure=found), found) if isinstance(found, GpuprovError) else found


def not_mended(before: Patient, now: Patient) -> str:
    """Return why a node is not mended; empty if it is.

    The rules of its faults must still be able to judge, and all rules about GPUs that were.
    """
    if now.verdict in TREATED or (now.verdict == "unknown" and not now.unknown):  # or nothing was judged
        return f"{now.verdict}: {'; '.join(now.faults)}"
    about = {rule for rule in now.unknown if rule not in RULES or is_of_gpus(rule)}
    blind = [rule for rule in now.unknown if rule in about.difference(before.unknown) or rule in before.rules]
    return f"unknown: {', '.join(blind)} could not judge" if blind else ""


def after(seen: Examination, since: float) -> Examination:
    """Return an examination without messages of the kernel from before a time, by the node's clock.

    Unchanged if it has no log of the kernel. NodeFailed if a time in the log is not a number.
    """
    log = seen.collectors.get("kernel_log")
    if not isinstance(log, dict) or "kept" not in log:
        return seen
    later = {**log, "kept": [line for line in log["kept"] if finite(line[0]) >= since]}
    if finite(log.get("since", 0)) <= since:
        later.pop("since", None)
    collectors = {**seen.collectors, "kernel_log": later}
    return Examination(seen.host, seen.collected_at, seen.seconds, collectors)


def bundles(context: RepairContext, names: list[str]) -> Result:
    """Write a bundle of each node with what was tried, replacing an earlier one; return the files, or the
    reasons without a file.

    A node that does not answer gets one without its own readings.
    """
    known, result = context.progress(), Result({})
    for name, seen in examine(targets(context.lock, names), dispatch=context.options.dispatch):
        patient_ = known[name].patient
        tried = {
            "schema": "gpuprov.repair-tried/1",
            "serials": [each for each in (patient_.machine, *patient_.units) if SERIAL.fullmatch(each)],
            "rules": patient_.rules,
            "verdict": patient_.verdict,
            "tried": known[name].tried,
            "failed": sorted(known[name].failed),
            "stays_out": patient_.stays,
        }
        path = context.folder / f"{name}.bundle.tar.gz"
        path.unlink(missing_ok=True)
        error = contained(name, partial(_pack, path, seen, tried))
        if error is not None:
            result.failed[name] = str(error)
        else:
            context.narrate(f"{name} stays out of service; for the vendor's support: {path}")
            result.data[name] = {"file": path.name}
    return result


def _pack(path: Path, seen: Examination | GpuprovError, tried: Mapping[str, Any]) -> None:
    """Write the bundle of a node; raises as `pack`, and what its answer does to the reader."""
    pack(path, _with(seen, tried))


def _with(seen: Examination | GpuprovError, tried: Mapping[str, Any]) -> Bundle:
    """Return the bundle of an examination with the steps that were tried."""
    found = Bundle({}, ()) if isinstance(seen, GpuprovError) else compose(seen)
    files = {**found.files, TRIED: json.dumps(tried, indent=1, sort_keys=True) + "\n"}
    files["LEFT-OUT.txt"] = files.get("LEFT-OUT.txt", "") + _MORE
    return replace(found, files=files)
