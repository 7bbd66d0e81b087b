"""GPUs of this node: who holds them, and their reset. Only units of a fixed list stop; no job is ended."""

import json
import os
import re
import time

from gpuprov_gpu_files import TooManyFiles, devices_of
from gpuprov_replace import make_folders, replace

from gpuprov.apply.node.lease import RUN
from gpuprov.probe.node.base import Failed, read_or_none, run, run_anyway
from gpuprov.probe.node.gpu import gpu_use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STOPPED = RUN + "/repair-stopped.json"
"""Units that a reset has stopped and not started again yet; gone after a reboot, which starts them."""


def use(holders: "list[str]", joining: "list[str]") -> "dict[str, Any]":
    """Return the `jobs` on the GPUs, the boot (`boot`), and the time of the node's clock (`at`); raises as
    `gpu_use`.

    Args:
        holders: units that a reset stops; their processes are no jobs.
        joining: units of the GPUs' fabric, which continue; their processes are no jobs.
    """
    return {
        "jobs": _jobs({*holders, *joining}),
        "boot": (read_or_none("/proc/sys/kernel/random/boot_id") or "").strip(),
        "at": time.time(),
    }


def reset(
    gpus: "list[str]",
    holders: "list[str]",
    joining: "list[str]",
    settings: "list[str]",
    reset_s: float,
    unit_s: float,
) -> "dict[str, Any]":
    """Reset GPUs by one command, with the units that hold them stopped meanwhile; return the time (`at`).

    The units are started again also if the reset fails, or if an interrupted one has stopped them.

    Args:
        gpus: bus addresses.
        holders, joining: as for `use`.
        settings: units that apply settings which a reset clears; the active ones are restarted.
        reset_s: time limit of nvidia-smi in seconds.
        unit_s: time limit in seconds for units to stop, and for each to start.

    Raises:
        Failed: a job uses the GPUs, a unit does not stop, or nvidia-smi refuses; nothing else was done.
    """
    _refuse_jobs({*holders, *joining})
    # A unit of settings may be part of a holder, and then stops with it.
    active = [unit for unit in [*settings, *holders] if _is_active(unit)]
    again = list(dict.fromkeys([*active, *_stopped_before()]))
    _write(again)
    try:
        stopped = [unit for unit in again if unit in holders]
        if stopped:
            run("systemctl", "stop", *stopped, seconds=unit_s)
        _refuse_jobs(set(joining))
        at = time.time()
        code, out, err = run_anyway("nvidia-smi", "--gpu-reset", "-i", ",".join(gpus), seconds=reset_s)
        if code:
            raise Failed(f"nvidia-smi --gpu-reset exited with {code}: {_last_line(out + err)}")
    finally:
        _start(again, unit_s)
    return {"at": at}


def _jobs(units: "set[str]") -> "list[str]":
    """Return `NAME (PID)` of processes with an open GPU device that belong to none of the units, and
    containers with GPUs; raises as `gpu_use`.
    """
    answer = gpu_use({})
    found = []
    for pid, name in sorted(answer["processes"].items(), key=lambda item: int(item[0])):
        if _unit_of(pid) not in units and _still_uses(pid):
            found.append(f"{name} ({pid})")
    return found + ["container " + name for name in answer["containers"]]


def _still_uses(pid: str) -> bool:
    """Return whether a process that had a GPU open has one now; True if it has too many files open."""
    try:
        return bool(devices_of(pid))
    except TooManyFiles:
        return True


def _refuse_jobs(units: "set[str]") -> None:
    """Raise Failed if a process that belongs to none of the units, or a container, uses the GPUs."""
    jobs = _jobs(units)
    if jobs:
        raise Failed("the GPUs are in use by " + ", ".join(jobs[:8]))


def _unit_of(pid: str) -> "str | None":
    """Return the system service of a process; None for a process of a user, a job, or a container.

    Only a process directly in the service's own group counts: a service may have groups of jobs below it.
    """
    text = read_or_none("/proc/" + pid + "/cgroup") or ""
    units = re.findall(r"(?m)^\d+:[^:\n]*:/system\.slice/([^/\n]+\.service)$", text)
    return units[0] if units else None


def _is_active(unit: str) -> bool:
    """Return whether `systemctl is-active` confirms a unit; False for an unknown one."""
    return run_anyway("systemctl", "is-active", "--quiet", unit)[0] == 0


def _stopped_before() -> "list[str]":
    """Return the units that an interrupted reset of this boot has stopped; none without such a reset."""
    try:
        return [str(unit) for unit in json.loads(read_or_none(STOPPED) or "[]")]
    except ValueError:
        return []


def _write(units: "list[str]") -> None:
    """Record the units to start again, before they are stopped."""
    make_folders(RUN)
    replace(STOPPED, json.dumps(units).encode(), 0o600)


def _start(units: "list[str]", seconds: float) -> None:
    """Start or restart units in the reverse order, each also if another one fails, and forget them.

    Raises:
        Failed: one does not start; the record of them stays.
    """
    failed = []
    for unit in reversed(units):
        if run_anyway("systemctl", "restart", unit, seconds=seconds)[0]:
            failed.append(unit)
    if failed:
        raise Failed("after the reset {} did not start".format(", ".join(failed)))
    if os.path.exists(STOPPED):
        os.unlink(STOPPED)


def _last_line(text: str) -> str:
    """Return the lines of a message as one of at most 300 characters; `no output` for none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines)[:300] or "no output"
