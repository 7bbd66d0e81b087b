"""Rules for errors of GPUs and switches in the kernel's log (Xid, SXid), and for the driver's own advice."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from gpuprov.doctor.examination import Examination, LogLine, age
from gpuprov.doctor.fault import SEVERITIES, Class, Fault, Severity, rule
from gpuprov.probe.parse.health import Health
from gpuprov.untrusted import ShellLine, shell

REFUSED_S = 3600
"""Age from which a refused call is no evidence of the GPU's state: it is logged again at each attempt."""
OLD_S = 24 * 3600
"""Age from which a hardware error, after which the driver requires no action, is only history (our choice:
errors of the last night are still visible in the morning).
"""
REPEATED = 3
"""Number of an application's errors on only one GPU that makes the GPU suspect (our choice: the first may be
the program's mistake, the second its second start).
"""
ROWS: tuple[int, ...] = (
    8,
    11,
    13,
    31,
    37,
    39,
    45,
    46,
    48,
    54,
    61,
    63,
    64,
    60,
    69,
    74,
    78,
    79,
    92,
    93,
    94,
    95,
    109,
    119,
    121,
)
ROWS += (136, 140, 141, 142, 143, 144, 151, 155, 159, 162, 167)
"""Rows of `data/faults.json`, by the first code of each."""

_XID = re.compile(
    r"NVRM: (?:GPU at )?Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.\d)?\b"
    r"[^)]{0,40}\)[^:]{0,100}: (\d{1,3})\b,? ?(.*)"
)
_BUS = re.compile(
    r"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\.\d"
    r".{0,160}?fallen off the bus"
)
_NAMED = re.compile(r"caused by previous Xid (\d{1,3})\b")
"""The Xid that another one names as its cause, as 45 does from driver 570 on."""
_ACTION = re.compile(r"to 0x[0-9a-fA-F]{1,16} \(([^()]{1,100})\)")
_SXID = re.compile(
    r"nvidia-(nvswitch\d+): SXid \(PCI:([0-9a-fA-F:.]+)\): (\d{3,6}), ((?:Non-)?[Ff]atal)?,?(.*)"
)
ACTIONS: dict[str, Callable[[str], ShellLine]] = {
    "reset": lambda gpu: shell("stop the programs on it, then: sudo nvidia-smi --gpu-reset -i {}", gpu),
    "gpu reset required": lambda gpu: shell(
        "stop the programs on it, then: sudo nvidia-smi --gpu-reset -i {}", gpu
    ),
    "reboot": lambda gpu: shell("drain the node, then: sudo reboot"),
    "node reboot required": lambda gpu: shell("drain the node, then: sudo reboot"),
    "drain p2p": lambda gpu: shell(
        "stop programs that use several GPUs on this node; programs on only this GPU can continue"
    ),
    "drain and reset": lambda gpu: shell(
        "let the programs on it end and start none, then: sudo nvidia-smi --gpu-reset -i {}", gpu
    ),
    "recover imex domain": lambda gpu: shell(
        "sudo systemctl restart nvidia-imex on every node of the domain"
    ),
    "bus reset": lambda gpu: shell(
        "drain the node, then: sudo reboot   (the GPU's PCIe bus has to be reset)"
    ),
    "system reboot": lambda gpu: shell("drain the node, then: sudo reboot"),
}
"""Values of `gpu_recovery_action` and of Xid 154 (NVML, nvmlDeviceGpuRecoveryAction_t) → actions."""
RECOVERIES: dict[str, Class] = {
    "reset": "reset",
    "gpu reset required": "reset",
    "drain and reset": "reset",
    "drain p2p": "watch",
}
"""The same values → class of the fault; others need more than a reset of the GPU."""


@dataclass(frozen=True)
class Meaning:
    """Meaning of a code, and the action in NVIDIA's catalogue."""

    meaning: str
    whose: str
    action: str
    severity: Severity


@dataclass(frozen=True)
class Event:
    """One Xid of one GPU; `gpu` in lower case: `0000:ca:00`."""

    gpu: str
    code: int
    text: str
    line: LogLine


@cache
def meanings() -> Mapping[int, Meaning]:
    """Return the meanings in `data/xids.json`, by code."""
    result = json.loads((files("gpuprov.doctor") / "data/xids.json").read_text("utf-8"))
    return {int(code): Meaning(**each) for code, each in result["codes"].items()}


def read_xids(lines: tuple[LogLine, ...]) -> list[Event]:
    """Return the Xids of a kernel log, oldest first; "fallen off the bus" without a code is 79.

    A message counts from its beginning only: others quote names and paths that a user chooses.
    """
    found = []
    for line in lines:
        if result := _XID.match(line.text):
            found.append(Event(_short(result[1]), int(result[2]), result[3], line))
        elif lost := _BUS.match(line.text):
            found.append(Event(_short(lost[1]), 79, "GPU has fallen off the bus", line))
    return found


def _short(address: str) -> str:
    """Convert a PCI address: `00000000:CA:00.0` → `0000:ca:00`; one without a device is only written in lower
    case.
    """
    domain, bus, device, *_ = [*re.split(r"[:.]", address.lower().strip(":")), "", ""]
    return f"{int(domain or '0', 16):04x}:{bus}:{device}" if device else address.lower()


def _indexes(seen: Examination) -> dict[str, str]:
    """Return PCI address, without the function → nvidia-smi's index of a GPU."""
    return {(each.pci_address or "")[:-2]: str(each.index) for each in seen.smi.gpus}


@rule("errors.recovery", "X154", source="oci-xid nvml open-1342", after=("bus.lost",))
def recovery_action(seen: Examination) -> Iterator[Fault]:
    """Report the driver's recovery action for a GPU, unless it is none: from nvidia-smi, else from the last
    Xid 154.
    """
    wanted: dict[str, tuple[str, str]] = {}
    if "kernel_log" not in seen.missing:
        for event in read_xids(seen.kernel_log):
            if event.code == 154 and (result := _ACTION.search(event.text)):
                wanted[event.gpu] = (
                    result[1],
                    event.line.dated(160),
                )
    for health in _health(seen):
        if health.recovery_action is not None and health.pci_address:
            where = f"nvidia-smi -q, GPU {health.index}: GPU Recovery Action {health.recovery_action}"
            wanted[health.pci_address[:-2]] = (health.recovery_action, where)
    indexes = _indexes(seen)
    for gpu, (action, where) in wanted.items():
        folded = action.lower()
        if folded == "none":
            continue
        number = indexes.get(gpu, gpu)
        yield Fault(
            "degraded" if folded == "drain p2p" else "broken",
            f"the driver recommends for GPU {number}: {action}",
            (where,),
            "an error from which the GPU cannot recover alone; this action summarises the Xids before it",
            (_advice(action, number),),
            urgent=True,
            health=RECOVERIES.get(folded, "isolate"),
        )
    if all(action.lower() == "none" for action, _ in wanted.values()) and "kernel_log" not in seen.missing:
        yield from _reset_required(seen)
        yield from _restart_required(seen)


def _reset_required(seen: Examination) -> Iterator[Fault]:
    """Report calls that the driver refuses until a GPU is reset; its message does not name the GPU."""
    lines = [line for line in seen.log_lines(r"NV_ERR_RESET_REQUIRED") if line.age_s <= REFUSED_S]
    if lines:
        yield Fault(
            "degraded",
            "the driver refuses calls until a GPU is reset, and does not name the GPU",
            (lines[-1].dated(160),),
            "an error before it that only a reset ends; programs find the GPU busy or unavailable",
            (
                shell("nvidia-smi -q | grep -E '^GPU|Recovery Action'"),
                shell("drain the node, then: sudo nvidia-smi --gpu-reset -i GPU"),
            ),
        )


def _restart_required(seen: Examination) -> Iterator[Fault]:
    """Report that the driver's unified memory (nvidia-uvm) has stopped: it serves no program until a restart
    of the node.
    """
    lines = seen.log_lines(r"NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error .*os reboot")
    if lines:
        yield Fault(
            "broken",
            "nvidia-uvm has stopped after an error, and starts no CUDA program until the node restarts",
            (lines[-1].dated(160),),
            "an error before it, most often a GPU that was lost while its page tables changed",
            (shell("sudo dmesg | grep -E 'NVRM|Xid' | tail -50"), shell("drain the node, then: sudo reboot")),
            urgent=True,
            health="isolate",
        )


def _advice(action: str, gpu: str) -> ShellLine:
    """Return the command for a recovery action, or a line with its name if it is not in `ACTIONS`."""
    known = ACTIONS.get(action.lower())
    return known(gpu) if known else shell("take the action that the driver names: {}", action)


def _health(seen: Examination) -> tuple[Health, ...]:
    """Return the GPUs' health; empty if nvidia-smi failed without listing a GPU."""
    return seen.health if not (seen.smi.error and not seen.smi.gpus) else ()


@rule(
    "errors.xid",
    *(f"X{code}" for code in ROWS),
    "D62",
    source="oci-xid open-1150",
    after=("errors.recovery", "bus.lost"),
)
def xids(seen: Examination) -> Iterator[Fault]:
    """Report each Xid of the kernel log except 154, once per code and GPU, the most severe codes first.

    The severity is the catalogue's, a risk for an unknown code; age, number and the driver's recovery action
    change it as in `_weigh`.
    """
    groups: dict[tuple[str, int], list[Event]] = {}
    cleared: dict[str, float] = {}
    """GPU → age of the line with which the driver cancelled its last action, as after a reset."""
    logged = read_xids(seen.kernel_log)
    for event in [*logged, *_named(logged)]:
        if event.code == 154:
            result = _ACTION.search(event.text)
            cleared[event.gpu] = event.line.age_s if result and result[1].lower() == "none" else math.inf
        else:
            groups.setdefault((event.gpu, event.code), []).append(event)
    settled = {
        each.pci_address[:-2] for each in _health(seen) if each.pci_address and each.recovery_action == "none"
    }
    indexes, gpus_with = _indexes(seen), Counter(code for _, code in groups)
    for (gpu, code), events in sorted(groups.items(), key=lambda item: _weight(item[0][1])):
        known = meanings().get(
            code, Meaning("a code that is not in the catalogue", "unknown", "ask the vendor", "risk")
        )
        last = events[-1]
        over = (gpu in settled and last.line.age_s > OLD_S) or last.line.age_s > cleared.get(gpu, math.inf)
        severity, why = _weigh(known, events, gpus_with[code], over=over)
        number = indexes.get(gpu, gpu)
        who = _program(last.text)
        named = next((result[1] for each in events if (result := _NAMED.search(each.text))), None)
        if named and named != str(code):
            why = f"its cause is Xid {named}: act on that one"
        yield Fault(
            severity,
            f"Xid {code} on GPU {number}: {known.meaning}"
            + (f", {len(events)} times" if len(events) > 1 else ""),
            (
                last.line.dated(200),
                *([f"the first one {age(events[0].line.age_s)} ago"] if len(events) > 1 else []),
            ),
            f"{known.whose}{f'; program: {who}' if who else ''}{f'; {why}' if why else ''}",
            _acts(known.action, number),
            urgent=code in (79, 95, 48, 119),
            health="reset" if _needs_reset(severity, known) else None,
        )


def _needs_reset(severity: Severity, known: Meaning) -> bool:
    """Return whether an Xid requires a reset of the GPU: one that ended all its programs, or one of a link.

    After a contained memory error (94) other programs continue, and the GPU can be reset when it is idle.
    """
    asks = "reset the GPU" in known.action and "when convenient" not in known.action
    return severity in ("broken", "degraded") and asks


def _named(events: list[Event]) -> list[Event]:
    """Return the Xids that others name as their cause and that the log no longer has, once per GPU."""
    logged = {(each.gpu, each.code) for each in events}
    found: dict[tuple[str, int], Event] = {}
    for event in events:
        cause = _NAMED.search(event.text)
        if cause and int(cause[1]) != event.code and (event.gpu, int(cause[1])) not in logged:
            found[event.gpu, int(cause[1])] = replace(event, code=int(cause[1]))
    return list(found.values())


def _weight(code: int) -> int:
    """Return the place of a code's severity in `SEVERITIES`; an unknown code is a risk."""
    known = meanings().get(code)
    return SEVERITIES.index(known.severity) if known else 2


def _program(text: str) -> str:
    """Return name and PID in an Xid's text, as far as it contains them: `python pid 4711`."""
    pid = re.search(r"pid='?(\d+)", text)
    name = re.search(r"name=([^,\s]+)", text)
    return " ".join(
        filter(None, [name[1] if name and "<" not in name[1] else "", f"pid {pid[1]}" if pid else ""])
    )


def _weigh(known: Meaning, events: list[Event], gpus: int, *, over: bool) -> tuple[Severity, str]:
    """Return the severity of a code's events on one GPU, and why it differs from the catalogue's, or an empty
    string.

    Keep the catalogue's severity except in two cases. A hardware error (broken or degraded) is only a risk if
    `over`: the driver no longer recommends an action. An application's error (a hint) is a risk from
    `REPEATED` times on, if no other GPU has it.

    Args:
        gpus: number of GPUs that have the code.
    """
    if known.severity in ("broken", "degraded") and over:
        return "risk", "the driver recommends no action any more: no action unless it recurs"
    if known.severity == "hint" and "application" in known.whose and len(events) >= REPEATED and gpus == 1:
        return "risk", "only on this GPU: test it (dcgmi diag -r 3, when it is idle)"
    return known.severity, ""


def _acts(action: str, gpu: str) -> tuple[ShellLine, ...]:
    """Return the action in the table of Xids, and the command if the GPU must be reset."""
    lines = [ShellLine(action)]  # a sentence of `data/xids.json`, a file of gpuprov
    if "reset the GPU" in action:
        lines.append(shell("stop the programs on it, then: sudo nvidia-smi --gpu-reset -i {}", gpu))
    return tuple(lines)


@rule("errors.sxid", "SXID", source="oci-xid fm-guide", after=("errors.recovery",))
def sxids(seen: Examination) -> Iterator[Fault]:
    """Report errors of NVSwitches in the kernel log, once for each code, switch and fatality: fatal ones as
    broken, others as a risk.
    """
    groups: dict[tuple[str, str, bool], list[LogLine]] = {}
    for line in seen.kernel_log:
        if result := _SXID.match(line.text):
            fatal = (result[4] or "").lower() == "fatal"
            groups.setdefault((result[1], result[3], fatal), []).append(line)
    for (switch, code, fatal), lines in groups.items():
        yield Fault(
            "broken" if fatal else "risk",
            f"SXid {code} on {switch}: {'fatal' if fatal else 'not fatal'} NVSwitch error"
            + (f", {len(lines)} times" if len(lines) > 1 else ""),
            (lines[-1].dated(200),),
            "NVSwitch or a link of it; jobs over NVLink fail or hang until it is reset"
            if fatal
            else "corrected or contained; a link that reports it repeatedly is defective",
            (shell("drain the node, then: sudo reboot   (GPUs and switches have to be reset together)"),)
            if fatal
            else (shell("watch whether it grows: sudo dmesg | grep SXid"),),
            urgent=fatal,
        )
