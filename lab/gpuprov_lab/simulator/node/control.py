"""gpuprov-sim: boots the simulated drivers, adds faults and removes them. For tests, on the node."""

from __future__ import annotations

import sys

from .files import Files
from .kernel import Kernel
from .kernel_log import say

FAULTS = {
    "gpu-dead": "INDEX: the GPU falls off the bus until `power`, which a reboot is not",
    "gpu-lost": "INDEX: the GPU falls off the bus (Xid 79) until the next boot",
    "hang": "nvidia-smi never answers",
    "mismatch": "NVML refuses as if the library were of another version",
    "no-devices": "the driver finds no GPU",
    "remap": "INDEX: a row remap is pending until a reset of the GPU, or the next boot",
    "remap-stuck": "INDEX: a row remap is pending until the next boot, and a reset does not help",
    "xid": "INDEX CODE: an Xid message in the kernel's log, nothing else",
}
_USAGE = (
    "usage: gpuprov-sim boot | power | status | log TEXT | fault NAME [ARGUMENT ...] | mend\n"
    + "\n".join(f"  fault {name:<13}{meaning}" for name, meaning in FAULTS.items())
)


def control(files: Files, arguments: list[str]) -> int:
    """Run one command of `gpuprov-sim`; return 0, or 2 with the usage on stderr for an unknown one.

    `boot` loads the modules as a boot does, `power` also removes faults that survive a boot, `status` prints
    machine and modules, `mend` removes all faults, `log` writes a message of the kernel.
    """
    kernel = Kernel(files)
    match arguments:
        case ["boot"]:
            kernel.boot()
        case ["power"]:
            _forget_power(kernel)
            kernel.boot()
        case ["status"]:
            sys.stdout.write(f"{kernel.machine.name}: {', '.join(kernel.modules()) or 'no driver loaded'}\n")
        case ["log", *words] if words:
            say(files, " ".join(words))
        case ["mend"]:
            _forget_power(kernel)
            with kernel.state.change() as state:
                state["faults"] = {}
        case ["fault", *fault] if _add_fault(kernel, fault):
            pass
        case _:
            sys.stderr.write(_USAGE + "\n")
            return 2
    return 0


def _add_fault(kernel: Kernel, fault: list[str]) -> bool:
    """Add a fault of `FAULTS`, with its arguments, and write its Xid into the kernel's log, if it has one.

    Return False for another fault or a GPU that does not exist.
    """
    match fault:
        case ["gpu-dead", index] if _has(kernel, index):
            with kernel.power.change() as power:
                power["dead"] = [*power.get("dead", []), index]
            _xid(kernel, int(index), "79, GPU has fallen off the bus.")
        case [("remap" | "remap-stuck") as name, index] if _has(kernel, index):
            _put_in(kernel, name, [index])
        case ["gpu-lost", index] if _has(kernel, index):
            _put_in(kernel, "gpu-lost", [index])
            _xid(kernel, int(index), "79, GPU has fallen off the bus.")
        case ["xid", index, code] if _has(kernel, index):
            _xid(kernel, int(index), f"{code}, pid='<unknown>', name=<unknown>")
        case [("hang" | "mismatch" | "no-devices") as name]:
            _put_in(kernel, name, [])
        case _:
            return False
    return True


def _has(kernel: Kernel, index: str) -> bool:
    """Return whether a text is the index of a GPU of the machine."""
    return index.isdigit() and int(index) < len(kernel.machine.gpus)


def _forget_power(kernel: Kernel) -> None:
    """Remove the faults that only a power cycle removes."""
    with kernel.power.change() as power:
        power.clear()


def _put_in(kernel: Kernel, name: str, arguments: list[str]) -> None:
    """Record a fault with further arguments until the next boot."""
    with kernel.state.change() as state:
        faults = state.setdefault("faults", {})
        faults[name] = faults.get(name, []) + arguments


def _xid(kernel: Kernel, index: int, text: str) -> None:
    """Write an Xid message of a GPU into the kernel's log."""
    place = kernel.machine.gpus[index].address.removesuffix(".0")
    say(kernel.files, f"NVRM: Xid (PCI:{place}): {text}")
