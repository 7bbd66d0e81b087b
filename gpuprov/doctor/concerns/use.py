"""Rules for the use of GPUs: hidden ones, compute modes, MPS, MIG, memory held by ended programs."""

from __future__ import annotations

from collections.abc import Iterator

from gpuprov.doctor.examination import Examination, Program
from gpuprov.doctor.fault import Fault, listed, rule
from gpuprov.doctor.lines import without_variable
from gpuprov.probe.facts import Missing
from gpuprov.untrusted import shell
from gpuprov.untrusted.parsing import whole_number

ENDED = (
    "nvidia-persiste",
    "nv-fabricmanage",
    "nv-hostengine",
    "nvidia-persistenced",
    "dcgm",
    "nvidia-smi",
    "Xorg",
    "nvsm",
    "dcgm-exporter",
)
"""Programs of the system that open GPUs without computing; a user can give any program such a name."""
LAST_SYSTEM_UID = 999
"""Largest number of the system's accounts (login.defs(5), UID_MIN is 1000)."""
HELD_MIB = 1024
"""Used memory in MiB that is suspect (our choice: the driver itself uses some hundred MiB of a large GPU)."""


@rule("cuda.hidden", "D42", "D43", source="cuda-env")
def hidden(seen: Examination) -> Iterator[Fault]:
    """Report that an environment variable for every login selects GPUs; degraded if it names none or unknown
    ones.
    """
    known = {gpu.uuid for gpu in seen.gpus if gpu.uuid}
    count = len(seen.gpus)
    places = [
        (path, name, value)
        for path, values in seen.environment.items()
        for name, value in values.items()
        if name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
    ]
    for path, name, value in places:
        bad = value.strip() in ("", "-1", "NoDevFiles", "void") or any(
            _number(each) >= count or (each.startswith("GPU-") and each not in known)
            for each in value.split(",")
        )
        yield Fault(
            "degraded" if bad else "risk",
            f"{path} sets {name} for every login: {value or '(empty)'}",
            (f"{path}: {name}={value}", f"nvidia-smi: {count} GPUs"),
            "CUDA finds no GPU (100) or another than intended (101)" if bad else "programs see only these",
            (without_variable(path, name), shell("log in again")),
        )


def _number(text: str) -> int:
    """Return the number of a GPU that a text is, -1 for any other text."""
    number = whole_number(text)
    return -1 if number is None else number


@rule("cuda.exclusive", "D44", source="cuda-err")
def exclusive(seen: Examination) -> Iterator[Fault]:
    """Report a GPU that by its compute mode only one program (a risk), or none (broken), may use."""
    for gpu in seen.gpus:
        mode = (gpu.compute_mode or "").lower()
        if "prohibited" in mode:
            severity, holder = "broken", "no program may use it"
        elif "exclusive" in mode:
            severity = "risk"
            holder = (
                f"held by {gpu.processes[0].name} ({gpu.processes[0].pid})" if gpu.processes else "free now"
            )
        else:
            continue
        yield Fault(
            severity,  # type: ignore[arg-type]
            f"GPU {gpu.index}: compute mode {gpu.compute_mode}: {holder}",
            (f"nvidia-smi -q: Compute Mode {gpu.compute_mode}",),
            "a second program fails with CUDA error 46",
            (shell("sudo nvidia-smi -i {} -c 0   (if it is not intended)", gpu.index),),
            "settings.compute_mode: default",
        )


@rule("cuda.mps", "D45", source="cuda-err")
def mps(seen: Examination) -> Iterator[Fault]:
    """Report variables of logins for an MPS server that is not running."""
    places = [
        (path, name)
        for path, values in seen.environment.items()
        for name in values
        if name.startswith("CUDA_MPS")
    ]
    if places and not seen.raw("programs")["mps"]:
        yield Fault(
            "degraded",
            "logins are sent to an MPS server, and none runs",
            tuple(f"{path}: {name}" for path, name in places[:4]),
            "programs may fail with CUDA error 805",
            (
                *(without_variable(path, name) for path, name in places[:4]),
                shell("or start the server: nvidia-cuda-mps-control -d"),
            ),
        )


@rule("cuda.mig_pending", "D46", source="oci-dr op-118")
def mig_pending(seen: Examination) -> Iterator[Fault]:
    """Report a change of MIG that needs a reset: broken if MIG is still on and has no instance left, else a
    risk.
    """
    for gpu in seen.gpus:
        if gpu.mig.pending is not None and gpu.mig.current != gpu.mig.pending:
            empty = gpu.mig.current and not gpu.mig_devices and seen.is_root
            yield Fault(
                "broken" if empty else "risk",
                f"GPU {gpu.index}: MIG is {_on(gpu.mig.current)} and will be {_on(gpu.mig.pending)} "
                f"after a reset",
                ("nvidia-smi -q: MIG Mode, Current and Pending differ",),
                "programs hold the GPU, or the mode needs a reset",
                (shell("end the programs, then: sudo nvidia-smi --gpu-reset -i {}", gpu.index),),
                "settings.mig",
            )


@rule("cuda.mig_left", "D47", source="oci-dr")
def mig_left(seen: Examination) -> Iterator[Fault]:
    """Report MIG without instances: CUDA finds no device. Not if it is being switched off.

    Raises:
        Missing: without root, instances may be invisible.
    """
    for gpu in seen.gpus:
        if gpu.mig.current and gpu.mig.pending is not False and not gpu.mig_devices:
            if not seen.is_root:
                raise Missing("smi", "users without access to a MIG instance do not see it")
            yield Fault(
                "broken",
                f"GPU {gpu.index}: MIG is on without instances: CUDA sees no device (100)",
                ("nvidia-smi -q: Current MIG Mode Enabled, no MIG device",),
                "left on by a former user, or instances were lost at the reboot",
                (
                    shell("sudo nvidia-smi -i {} -mig 0", gpu.index),
                    shell("or create instances: sudo nvidia-smi mig -cgi 0 -C"),
                ),
                "settings.mig: []   (off), or the profiles that you need",
            )


def _on(mode: bool | None) -> str:
    """Return `on` or `off`; None counts as off."""
    return "on" if mode else "off"


def _is_daemon(program: Program) -> bool:
    """Return whether a program is one of `ENDED` of root or of a daemon's account."""
    return program.name.startswith(ENDED) and (program.uid or 0) <= LAST_SYSTEM_UID


@rule("cuda.held", "D48", source="gcm gpud choice")
def held_by_the_dead(seen: Examination) -> Iterator[Fault]:
    """Report programs that hold a GPU and cannot end, and (with root's rights, outside containers) more than
    `HELD_MIB` of used memory without a visible program.
    """
    holders = seen.programs
    working = [program for program in holders if not _is_daemon(program)]
    stuck = {str(pid) for _, pid, _ in seen.raw("programs")["stuck"]}
    for program in working:
        if program.state == "Z" or (program.state == "D" and str(program.pid) in stuck):
            dead = program.state == "Z"
            yield Fault(
                "degraded",
                f"process {program.pid} ({program.name}) holds {listed(list(program.gpus))} and "
                + ("is dead" if dead else f"sleeps in the kernel ({program.waits})"),
                (
                    f"/proc/{program.pid}/stat: state {program.state}",
                    f"/proc/{program.pid}/wchan: {program.waits}",
                ),
                "its parent does not reap it" if dead else "it waits for storage, a device or the driver",
                (
                    shell("end its parent: ps -o ppid= -p {}", program.pid)
                    if dead
                    else shell(
                        "the device that it waits for must answer; otherwise only a reboot frees the GPU"
                    ),
                ),
            )
    if not seen.is_root or seen.in_container:
        return
    opened = {device for program in working for device in program.gpus}
    unknown = str(seen.raw("programs").get("unmapped") or "")
    for gpu in seen.gpus:
        unseen = not gpu.processes and f"nvidia{gpu.minor}" not in opened
        if unseen and (gpu.memory_used_mib or 0) > HELD_MIB and not gpu.mig.current:
            yield Fault(
                "degraded",
                f"GPU {gpu.index}: {gpu.memory_used_mib} MiB are in use, and no program has the GPU open",
                (
                    f"nvidia-smi: used {gpu.memory_used_mib} MiB, no process",
                    "/proc/*/fd: no process has the device open",
                    *([f"/proc/*/map_files: {unknown}"] if unknown else []),
                ),
                "a program that has it mapped, which is not known here, or a context that was not cleaned up"
                if unknown
                else "a context that was not cleaned up",
                (shell("end the process that keeps its mappings from being read, and look again"),)
                if unknown
                else (shell("sudo nvidia-smi --gpu-reset -i {}", gpu.index), shell("or: sudo reboot")),
            )
