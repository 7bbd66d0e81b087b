"""Samples of the GPUs under load, and their error counters before and after; read only."""

import contextlib
import json
import os
import re
import select
import time
from ctypes import byref, c_uint, c_ulonglong

from gpuprov.probe.node.base import link_name, names_in, read_or_none, redact
from gpuprov.probe.node.gpu_sample import Nvml
from gpuprov.probe.node.kernel_log import open_ring, records
from gpuprov.probe.node.kernel_messages import XID, kind_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpuprov.probe.node.base import Values

INTERVAL = 0.2
"""Seconds between two samples."""
CORRECTED, UNCORRECTED, VOLATILE = 0, 1, 0
FREED_S = 5.0
"""Seconds in which the driver frees the GPUs of processes that were ended."""
LINKS = 18
"""Maximum number of NVLinks of a GPU."""
LINK_ERRORS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3}
PROC = "/proc"
SCHEDULERS = {
    "slurmd": "Slurm",
    "kubelet": "Kubernetes",
    "pbs_mom": "PBS",
    "lim": "LSF",
    "execd": "Grid Engine",
}
"""Program that starts jobs on a node → its scheduler."""


class Watch(Nvml):
    """NVML with the counters that a fault increases."""

    def counters(self) -> "list[Values]":
        """Return one row for each GPU: ECC errors, remapped rows, PCIe replays, NVLinks and MIG.

        None for a counter that the GPU does not have.
        """
        return [self._counted(index, handle) for index, handle in self._handles]

    def _counted(self, index: int, handle: "Any") -> "Values":
        """Return the counters of one GPU: ECC errors, remapped rows, PCIe replays, NVLinks and MIG mode; None
        for those that the driver does not report.
        """
        rows = [c_uint() for _ in range(4)]
        asked = getattr(self._library, "nvmlDeviceGetRemappedRows", None)
        remapped = asked is not None and asked(handle, *map(byref, rows)) == 0
        names = ("corrected", "uncorrected", "pending", "failed")
        modes = [c_uint(), c_uint()]
        mig = self._library.nvmlDeviceGetMigMode(handle, *map(byref, modes)) == 0
        return {
            "index": index,
            "uuid": self._text(handle, "UUID"),
            "ecc_corrected": self._ecc(handle, CORRECTED),
            "ecc_uncorrected": self._ecc(handle, UNCORRECTED),
            "remapped_rows": dict(zip(names, [row.value for row in rows])) if remapped else None,
            "pcie_replays": self._number(handle, "PcieReplayCounter"),
            "nvlinks": self._links(handle),
            "mig": bool(modes[0].value) if mig else None,
        }

    def _ecc(self, handle: "Any", kind: int) -> "int | None":
        """Return the ECC errors of a kind since the driver was loaded; None without ECC."""
        value = c_ulonglong()
        code = self._library.nvmlDeviceGetTotalEccErrors(handle, kind, VOLATILE, byref(value))
        return value.value if code == 0 else None

    def _links(self, handle: "Any") -> "Values":
        """Return `up`, the number of active NVLinks, and `errors`, the sum of their errors by kind."""
        up, errors = 0, {}  # type: int, Values
        for link in range(LINKS):
            active, value = c_uint(), c_ulonglong()
            if self._library.nvmlDeviceGetNvLinkState(handle, link, byref(active)) != 0 or not active.value:
                continue
            up += 1
            for name, which in LINK_ERRORS.items():
                if self._library.nvmlDeviceGetNvLinkErrorCounter(handle, link, which, byref(value)) == 0:
                    errors[name] = errors.get(name, 0) + value.value
        return {"up": up, "errors": errors}


def first_look() -> "Values":
    """Return the GPUs' state before the load, with the programs on them and the schedulers on this node.

    Also the counters. `programs` is without GPUs that have none, and has None for
    one whose programs are not known.

    Raises:
        Failed: NVML cannot be used.
    """
    watch = Watch()
    gpus = watch.read()
    programs = _programs(watch, gpus, [])
    return {"gpus": gpus, "counters": watch.counters(), "programs": programs, "schedulers": schedulers()}


def programs_after(own: "list[int]") -> "Values":
    """Return `programs` as in `first_look`, after the load, at the latest after `FREED_S`.

    Args:
        own: ids of this program's processes that do not end; they are left out.

    Raises:
        Failed: NVML cannot be used.
    """
    watch, until = Watch(), time.monotonic() + FREED_S
    programs = _programs(watch, watch.read(), own)
    while any(programs.values()) and time.monotonic() < until:
        time.sleep(INTERVAL)
        programs = _programs(watch, watch.read(), own)
    return {"programs": programs}


def _programs(watch: Watch, gpus: "list[Values]", own: "list[int]") -> "Values":
    """Return index -> [pid, MiB] of the programs on these GPUs, without `own`: None if they are not known,
    and without GPUs that have none.
    """
    found = watch.processes()
    result = {}  # type: Values
    for index in [gpu["index"] for gpu in gpus]:
        others = [row for row in found.get(index, ()) if row[0] not in own]
        if others or index not in found:
            result[str(index)] = others or None
    return result


def last_look() -> "Values":
    """Return the GPUs' state after the load: readings and counters.

    Raises:
        Failed: NVML cannot be used.
    """
    watch = Watch()
    return {"gpus": watch.read(), "counters": watch.counters()}


def sample(pipe: int) -> None:
    """Write a line of JSON, [time, rows], every `INTERVAL` seconds until the pipe is closed.

    Times are those of time.monotonic().
    """
    watch = Watch()
    while True:
        keys = ("index", "clock", "power_w", "temperature", "reasons", "gpu")
        rows = [{key: row[key] for key in keys} for row in watch.read()]
        try:
            os.write(pipe, (json.dumps([time.monotonic(), rows]) + "\n").encode())
        except OSError:
            return
        time.sleep(INTERVAL)


def sample_summary(samples: "list[Any]", index: int, begun: float, ended: float) -> "Values":
    """Return the summary for one GPU between two times.

    `samples` is their number, `reasons` all throttle reasons; `clock`, `power_w` and `temperature` are
    [least, median, most], None without samples. The first samples are left out: clocks and power lag behind
    the load.
    """
    inside = [
        row
        for at, rows in samples
        for row in rows
        if row["index"] == index and begun + 0.6 < at < ended - 0.1
    ]
    result = {"samples": len(inside), "reasons": 0}  # type: Values
    for name in ("clock", "power_w", "temperature"):
        values = sorted(row[name] for row in inside if row[name] is not None)
        result[name] = [values[0], values[len(values) // 2], values[-1]] if values else None
    for row in inside:
        result["reasons"] |= row["reasons"] or 0
    return result


def follow(pipe: int) -> None:
    """Write a line of JSON, what `new_xids` yields from now on, until the pipe is closed.

    It runs before users' programs, with which they could keep it from a processor while they write messages.

    Raises:
        Failed, OSError: the kernel's log cannot be read.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    for result in new_xids(open_ring(os.SEEK_END)):
        os.write(pipe, (json.dumps(result) + "\n").encode())


def new_xids(ring: int) -> "Iterator[Values]":
    """Yield what is known of the Xids in records of the kernel's log, at first and after each change.

    `lines` has time and text of the first Xid of each code and GPU, with secrets hidden; `lost` is there if
    records were overwritten before they were read.
    """
    result, seen = {"lines": []}, set()  # type: Values, set[str]
    yield result
    while select.select([ring], [], []):
        for seconds, text in records(ring, b"Xid"):
            kind = "lost" if text is None else kind_of(text) if XID.match(text) else ""
            if not kind or kind in seen:
                continue
            seen.add(kind)
            if text is None:
                result["lost"] = "the kernel's log was overwritten before it was read"
            else:
                result["lines"].append({"at": seconds, "text": redact(text)})
            yield result


def schedulers() -> "list[str]":
    """Return the sorted names of schedulers whose program runs on this node as root."""
    running = {program for program in map(_program_of_root, names_in(PROC)) if program}
    return sorted(name for program, name in SCHEDULERS.items() if program in running)


def _program_of_root(pid: str) -> "str | None":
    """Return the name of a program that root has started; None for others.

    A user can give a process any name, also one with root's rights, by a link to a program such as sudo: the
    file that it runs has to have that name too, and its real user to be root.
    """
    folder = PROC + "/" + pid + "/"
    if not pid.isdecimal() or not re.search(r"(?m)^Uid:\s+0\s", read_or_none(folder + "status", 65536) or ""):
        return None
    name = (read_or_none(folder + "comm", 64) or "").strip()
    file = (link_name(folder + "exe") or "").replace(" (deleted)", "")
    return name if file == name else None
