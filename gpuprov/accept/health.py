"""Judgement of a node's document apart from its rates: correct results, and errors under load."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpuprov.accept.neighbours import SPREAD
from gpuprov.accept.node.memory import BLOCK, GIB, RESERVE
from gpuprov.accept.node.nccl import LOG_LIMIT
from gpuprov.accept.program import KINDS, PLANS
from gpuprov.accept.rates import COLLECTIVES, OF_GPU, links_up, model, number, part, rates, rows
from gpuprov.finding import Finding
from gpuprov.nccl.log import read_log
from gpuprov.nccl.verdict import ExpectedPaths, judge_log

Document = Mapping[str, Any]
HELD_GIB = 4
"""GiB in use apart from the test from which a GPU counts as occupied; a driver itself holds less than one."""
SLOWED = {0x8: "hardware slowdown", 0x20: "heat (software)", 0x40: "heat (hardware)", 0x80: "power brake"}
"""Throttle reasons of nvml.h that never occur on a sound server."""
NOT_HERE = "not supported on this GPU"
CODE = re.compile(r"NVRM: (?:GPU at )?Xid \([^)]{1,80}\)[^:]{0,100}: (\d{1,3})\b")
"""Beginning of a message of the driver, with the code of an error."""
OF_PROGRAMS = (
    {8, 11, 13, 25, 31, 32, 39, 40, 41, 43, 45, 60, *range(68, 73), 75, 76, 77, 80}
    | {*range(82, 87), 88, 89, *range(96, 106), *range(126, 136), 137}
)  # fmt: skip
"""Codes of errors that a program causes, by a mistake or its end, as in the doctor's table."""


def findings(document: Document) -> Iterator[Finding]:
    """Yield all findings, in the order of the run."""
    for rule in _RULES:
        yield from rule(document)


def _seen(document: Document) -> Iterator[Finding]:
    """Check that CUDA programs see as many GPUs as NVML lists; yield at most one fault."""
    listed = len(rows(document, "before", "gpus"))
    for gpu in rows(document, "gpus"):
        result = number(part(gpu, "device").get("visible"))
        if result is not None and result != listed:
            text = f"programs see {result:.0f} GPUs, the driver lists {listed}"
            yield Finding("bad", "device.seen", text)
            return


def _ran(document: Document) -> Iterator[Finding]:
    """Check that every step gave a value; a step that the GPU does not support is `ok`, unless the vendor
    states a peak for it. A GPU that did not start has one fault for all its steps.
    """
    for gpu in rows(document, "gpus"):
        where = f"GPU {gpu.get('index')}"
        if "error" in part(gpu, "device"):
            yield Finding("bad", "device.error", f"{where}: {part(gpu, 'device')['error']}")
            continue
        steps = {name: part(gpu, name) for name in ("device", "memory", "host", "pattern")}
        steps |= {kind: part(gpu, "matrix", kind) for kind in KINDS}
        for name, result in steps.items():
            error = result.get("error", None if result else "not measured")
            if error is not None and NOT_HERE in str(error) and not _made_for(document, gpu, name):
                yield Finding("ok", f"{name}.none", f"{where} {name}: {NOT_HERE}")
            elif error is not None:
                yield Finding("bad", f"{name}.error", f"{where} {name}: {error}")


def _made_for(document: Document, gpu: Document, kind: str) -> bool:
    """Return whether the vendor states a peak of that GPU for a number format; False for other steps."""
    known = model(document, int(number(gpu.get("index")) or 0))
    return kind in OF_GPU and OF_GPU[kind].peak in known.peak


def _joined(document: Document) -> Iterator[Finding]:
    """Check that each pair of GPUs and the collectives were measured, if there is more than one GPU."""
    count = len(rows(document, "gpus"))
    if count < 2:
        return
    pairs, nccl = part(document, "between", "pairs"), part(document, "between", "nccl")
    measured = len(rows(document, "between", "pairs"))
    if measured != count * (count - 1):
        why = pairs.get("error", f"{measured} of {count * (count - 1)} pairs were measured")
        yield Finding("bad", "peer.error", f"copies between GPUs: {why}")
    if "error" in nccl or not rows(nccl, "sizes"):
        yield Finding("bad", "nccl.error", f"collectives: {nccl.get('error', 'not measured')}")


def right(document: Document) -> Iterator[Finding]:
    """Check the results: products within rounding error, the same when repeated, and no wrong words in the
    memory test.
    """
    for gpu in rows(document, "gpus"):
        where = f"GPU {gpu.get('index')}"
        for kind in part(gpu, "matrix"):
            result = part(gpu, "matrix", kind)
            off, close = number(result.get("off")), number(result.get("close"))
            off, close = math.inf if off is None else off, close or 0.0
            if "error" not in result and off > close:
                text = f"{where} {kind}: a product is off by {off:.2g} of its parts, {close:.2g} is rounding"
                yield Finding("bad", "matrix.wrong", f"{text}: the GPU computes wrongly")
            if result.get("repeats") is False:
                text = f"{where} {kind}: the same product gave two results: the GPU computes wrongly"
                yield Finding("bad", "matrix.repeats", text)
        if wrong := rows(gpu, "pattern", "wrong"):
            words = sum(number(each.get("words")) or 0 for each in wrong)
            text = f"{where}: {words:.0f} words of its memory did not keep what was written"
            yield Finding("bad", "memory.wrong", f"{text} (bits {wrong[0].get('bits')})")


def _arrived(document: Document) -> Iterator[Finding]:
    """Check the data that was sent between two GPUs, and the results of collectives."""
    for row in rows(document, "between", "pairs"):
        if row.get("wrong"):
            text = f"GPU {row.get('from')}>{row.get('to')}: the received data differs from the sent data"
            yield Finding("bad", "peer.wrong", text)
    for size in rows(document, "between", "nccl", "sizes"):
        for name in COLLECTIVES:
            if wrong := part(size, name, "wrong"):
                yield Finding("bad", f"{name}.wrong", f"{name}: wrong values on rank {wrong.get('rank')}")


def _free(document: Document) -> Iterator[Finding]:
    """Check that programs held at most `HELD_GIB` of GPU memory before the load: such memory cannot be
    tested.
    """
    for gpu in rows(document, "gpus"):
        total, free = (number(part(gpu, "device").get(f"memory_{name}")) for name in ("total", "free"))
        if total is not None and free is not None and total - free > HELD_GIB * GIB:
            text = (
                f"GPU {gpu.get('index')}: {free / GIB:.0f} of {total / GIB:.0f} GiB were free before any load"
            )
            yield Finding("bad", "memory.free", f"{text}: `nvidia-smi` lists who holds them")


def _plan(document: Document) -> Mapping[str, Any]:
    """Return the plan of the document's level; that of `full` if it states none."""
    return PLANS["quick" if document.get("level") == "quick" else "full"]


def _tested(document: Document) -> Iterator[Finding]:
    """Check that as many bytes were tested as the plan wants of the memory that was free when the test began,
    or of all memory but `HELD_GIB`: a program that started meanwhile may have held the rest.
    """
    for gpu in rows(document, "gpus"):
        result, total = part(gpu, "pattern"), number(part(gpu, "device").get("memory_total"))
        if "error" in result or not result:
            continue
        usable = max(number(result.get("free")) or 0, (total or 0) - HELD_GIB * GIB) - RESERVE - BLOCK
        tested, wanted = number(result.get("bytes")) or 0, min(_plan(document)["pattern"][0] * GIB, usable)
        if tested < wanted:
            text = f"GPU {gpu.get('index')}: {tested / GIB:.1f} GiB of its memory were tested"
            text = f"{text}, expected at least {wanted / GIB:.1f}: another program held the rest"
            yield Finding("bad", "memory.tested", f"{text}; end it and test again")


def _alone(document: Document) -> Iterator[Finding]:
    """Check that the programs on each GPU are known after the load."""
    found = part(document, "programs")
    listed = part(found, "programs")
    unknown = ", ".join(index for index in listed if listed[index] is None)
    why = found.get("error", unknown and f"NVML does not list those on GPU {unknown}")
    if why:
        text = f"it is not known whether programs used the GPUs meanwhile: {why}"
        yield Finding("bad", "device.programs", text)


def _numa(document: Document) -> Iterator[Finding]:
    """Check that the copies of each GPU ran on the CPUs of its NUMA node, if the kernel states one."""
    for gpu in rows(document, "gpus"):
        host = part(gpu, "host")
        stated, near = number(host.get("stated")), number(host.get("near"))
        if stated is not None and near != stated:
            text = f"GPU {gpu.get('index')} is on NUMA node {stated:.0f}, whose CPUs this login may not use"
            yield Finding("bad", "host.numa", f"{text}: check the CPU affinity of the login and its slice")


def _disturbed(document: Document) -> Iterator[Finding]:
    """Warn of copies to and from the host whose second measurement was faster by more than `SPREAD`."""
    cause = "something else, such as another guest of the host, used the link or the memory"
    for gpu in rows(document, "gpus"):
        host = part(gpu, "host")
        for name, measure in OF_GPU.items():
            first = number(part(host, "first").get(measure.place[1])) if measure.place[0] == "host" else None
            best = number(part(host, measure.place[1]).get("value"))
            if first is not None and best is not None and first < (1 - SPREAD) * best:
                text = f"GPU {gpu.get('index')} {name}: {first:.1f} GB/s, measured again {best:.1f}"
                yield Finding("warn", "host.disturbed", f"{text}: {cause}")


def _slowed(document: Document) -> Iterator[Finding]:
    """Check the throttle reasons reported under load; yield one fault for a GPU, with its highest
    temperature, and one if it was sampled less than once in each second in which the load was held.
    """
    for gpu in rows(document, "gpus"):
        kinds, reasons = part(gpu, "matrix"), 0
        measured = [kind for kind in kinds if "error" not in part(kinds, kind)]
        # Only the first kind's load is held. A GPU without it has some samples of the others.
        held, least = ([KINDS[0]], _plan(document)["hold"]) if KINDS[0] in measured else (measured, 1)
        samples = sum(number(part(kinds, kind, "load").get("samples")) or 0 for kind in held)
        if measured and samples < least:
            text = f"GPU {gpu.get('index')}: {samples:.0f} samples under load, expected at least {least:.0f}"
            yield Finding("bad", "load.samples", f"{text}: whether it slowed down is not known; test again")
        for kind in kinds:
            reasons |= int(number(part(kinds, kind, "load").get("reasons")) or 0)
        named = [name for bit, name in SLOWED.items() if reasons & bit]
        if named:
            hottest = max((_most(gpu, kind) for kind in kinds), default=0)
            text = (
                f"GPU {gpu.get('index')} slowed down under load: {', '.join(named)}; up to {hottest:.0f} °C"
            )
            yield Finding("bad", "load.slowed", text)


def _most(gpu: Document, kind: str) -> float:
    """Return the highest temperature in °C under the load of a number format; 0 if unknown."""
    result = part(gpu, "matrix", kind, "load").get("temperature")
    return (number(result[-1]) or 0) if isinstance(result, list) and result else 0


def _counted(document: Document) -> Iterator[Finding]:
    """Compare the counters before and after the load: a fault for uncorrected ECC errors, rows to remap (also
    older ones), NVLink errors and a GPU that is missing afterwards; a warning for corrected errors and PCIe
    replays.
    """
    before = {str(row.get("uuid")): row for row in rows(document, "before", "counters")}
    for row in rows(document, "after", "counters"):
        where, old = f"GPU {row.get('index')}", before.get(str(row.get("uuid")), {})
        if _grew(old, row, "ecc_uncorrected"):
            yield Finding(
                "bad", "ecc.uncorrected", f"{where}: uncorrected ECC errors under load; replace or reset it"
            )
        if _grew(old, row, "ecc_corrected"):
            yield Finding("warn", "ecc.corrected", f"{where}: corrected ECC errors under load")
        remapped = part(row, "remapped_rows")
        if remapped.get("failed") or remapped.get("pending"):
            text = "could not be" if remapped.get("failed") else "wait for a reset to be"
            yield Finding("bad", "ecc.rows", f"{where}: rows of its memory {text} remapped")
        for name in ("replay", "recovery"):
            if _grew(part(old, "nvlinks", "errors"), part(row, "nvlinks", "errors"), name):
                yield Finding("bad", f"nvlink.{name}", f"{where}: NVLink counted {name} errors under load")
        if _grew(old, row, "pcie_replays"):
            yield Finding("warn", "pcie.replays", f"{where}: PCIe retransmitted packets under load")
    missing = set(before) - {str(row.get("uuid")) for row in rows(document, "after", "counters")}
    for uuid in sorted(missing):
        yield Finding("bad", "device.lost", f"{uuid} answered before the load and not after it")


def _grew(old: Document, new: Document, name: str) -> bool:
    """Return whether a counter is higher in `new`; False if one of the two values is missing."""
    then, now = number(old.get(name)), number(new.get(name))
    return then is not None and now is not None and now > then


def _drives(document: Document) -> Iterator[Finding]:
    """Check that drives were read (else a fault), that drives and ports were listed (else a warning), and
    that no port is limited by its PCIe link.
    """
    if "error" in part(document, "host_devices"):
        why = part(document, "host_devices")["error"]
        yield Finding("warn", "nvme.unread", f"drives and ports: {why}")
    for drive in rows(document, "host_devices", "drives"):
        if "error" in part(drive, "read"):
            yield Finding("bad", "nvme.error", f"{drive.get('name')}: {part(drive, 'read')['error']}")
    for rate in rates(document, {}):
        if rate.measure == "nic" and rate.peak is not None and rate.value > rate.peak:
            text = f"{rate.where}: {rate.value:g} Gb/s, its PCIe link carries {rate.peak:.0f}"
            yield Finding("warn", "nic.pcie", f"{text}: check its slot and the negotiated link")


def _xids(document: Document) -> Iterator[Finding]:
    """Check that the kernel log contains no new Xid errors and has lost no message; warn if there is no
    log.

    Those of programs are left out: any user can cause one, and a step of acceptance that causes one fails.
    """
    found = part(document, "after", "xids")
    texts = [str(line.get("text")) for line in rows(found, "lines")]
    faults = [text for text in texts if not ((code := CODE.match(text)) and int(code[1]) in OF_PROGRAMS)]
    if faults:
        yield Finding("bad", "xid.new", f"the driver reported errors under load: {faults[-1]}")
    if "lost" in found:
        text = f"Xid errors may have been lost: {found['lost']}"
        yield Finding("bad", "xid.lost", f"{text}; `sudo dmesg -w` shows who or what floods it")
    elif "error" in found or "lines" not in found:
        why = found.get("error", "the kernel log was not read")
        yield Finding("warn", "xid.unread", f"Xid errors are not known: {why}")


def _linked(document: Document) -> Iterator[Finding]:
    """Check the number of active NVLinks against the published gate, if there are several GPUs, and that
    copies are direct if every GPU has an active link.
    """
    for row in rows(document, "before", "counters"):
        known = model(document, int(number(row.get("index")) or 0))
        up = number(part(row, "nvlinks").get("up"))
        gates = [gate for gate in known.thresholds.get("nvlinks_active", ()) if gate["kind"] == "gate"]
        if gates and up is not None and len(rows(document, "gpus")) > 1 and up < gates[0]["min"]:
            gate = f"{gates[0]['who']} expects {gates[0]['min']}"
            text = f"GPU {row.get('index')}: {up:.0f} NVLinks are up, {gate}"
            yield Finding("bad", "nvlink.up", text)
    if links_up(document):
        for row in rows(document, "between", "pairs"):
            if row.get("direct") is False:
                text = f"GPU {row.get('from')}>{row.get('to')}: no peer access although NVLink is up"
                yield Finding(
                    "bad", "peer.direct", f"{text}: look at the fabric manager and at virtualisation"
                )


def _transport(document: Document) -> Iterator[Finding]:
    """Check the paths in NCCL's own log, if there is one; a variable that switches paths off is a fault,
    except the one that acceptance sets itself. Only the first `LOG_LIMIT` characters are read.
    """
    log = part(document, "between", "nccl").get("log")
    if not isinstance(log, str):
        return
    log = log[:LOG_LIMIT]
    expected = ExpectedPaths("nvlink" if links_up(document) else None)
    for found in judge_log(read_log([io.StringIO(log)]), expected):
        # acceptance itself disables NVLS; any other variable was set on the node
        if found.rule == "environment.off" and _ours_alone(log):
            continue
        level = "bad" if found.rule == "environment.off" else found.level
        yield Finding(level, f"nccl.{found.rule}", f"NCCL: {found.text}")


def _ours_alone(log: str) -> bool:
    """Return whether the log names no variable that disables a transport and is not acceptance's own."""
    return not any(name in log for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"))


_RULES: tuple[Callable[[Document], Iterator[Finding]], ...] = (
    _seen, _ran, _joined, right, _arrived, _free, _tested, _alone, _numa, _disturbed, _slowed, _counted,
    _xids, _linked, _transport, _drives,
)  # fmt: skip
