"""Simulation of nvidia-smi's changes: persistence mode, clocks, power, ECC, MIG, compute mode, reset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .driver import Driver, NvmlError
from .machine import SimGpu
from .values import COMPUTE_MODES

Say = Callable[[str], None]
Change = Callable[[Driver, SimGpu, str, Say], None]

_INVALID = 2
_NO_PERMISSION = 4
_IN_USE = 255
_NOT_RESET = "The following GPUs could not be reset:\n"
_EARLY_END = "Terminating early due to previous errors."
_LAST_CALL = "Treating as warning and moving on."
_HINT = "Run 'nvidia-smi -q -d SUPPORTED_CLOCKS' to see list of supported clock combinations"


class _Unsupported(Exception):
    """The GPU lacks the setting; nvidia-smi prints that and continues."""


def change(driver: Driver, gpus: list[SimGpu], name: str, value: str, say: Say) -> int:
    """Change one setting of these GPUs and print nvidia-smi's messages; return its exit status.

    Raises:
        NvmlError: nvidia-smi would end early.
    """
    for gpu in gpus:
        if not driver.settings.permitted:
            raise NvmlError(_NO_PERMISSION, f"{_forbidden(name, gpu)}\n{_EARLY_END}")
        try:
            CHANGES[name](driver, gpu, value, say)
        except _Unsupported as unsupported:
            say(f"{unsupported}\n{_LAST_CALL}")
            continue
        if name in _VOLATILE and not driver.settings.of(gpu)["persistence"]:
            say(_NOT_PERSISTENT.format(gpu.bus_id))
    say("All done.")
    if name == "ecc" and any(len(set(driver.settings.mode(gpu, "ecc"))) > 1 for gpu in gpus):
        say("Reboot required.")
    return 0


def _persistence(driver: Driver, gpu: SimGpu, value: str, say: Say) -> None:
    """Switch persistence mode, by the daemon from driver 580 on if it runs; print the result as nvidia-smi
    does. Raises as `_switch`.
    """
    wanted = _switch(value, "persistence mode")
    if driver.settings.of(gpu)["persistence"] == wanted:
        say(f"Persistence mode is already {_state(wanted)} for GPU {gpu.bus_id}.")
        return
    driver.settings.set(gpu, "persistence", wanted)
    if not wanted:
        say(f"Disabled persistence mode for GPU {gpu.bus_id}.")
        return
    kind = "persistence mode"
    if driver.branch >= 580:
        kind = "persistence mode via daemon" if driver.settings.daemon_runs() else "Legacy persistence mode"
    say(f"Enabled {kind} for GPU {gpu.bus_id}.")


def _applications(driver: Driver, gpu: SimGpu, value: str, say: Say) -> None:
    """Set application clocks and print that, as nvidia-smi does.

    Raises:
        NvmlError: not a pair of memory and graphics clock that the model supports.
        _Unsupported: the model has no application clocks.
    """
    memory, graphics = _pair(value, "memClk,smClk e.g. --applications-clocks=2000,300")
    if "application-clocks" not in driver.machine.model.features:
        raise _Unsupported(f"Setting applications clocks is not supported for GPU {gpu.bus_id}.")
    if graphics not in driver.machine.model.supported_clocks().get(memory, []):
        raise _refused(f"(MEM {memory}, SM {graphics})", gpu)
    driver.settings.set(gpu, "applications", [memory, graphics])
    say(f'Applications clocks set to "(MEM {memory}, SM {graphics})" for GPU {gpu.bus_id}')


def _graphics(driver: Driver, gpu: SimGpu, value: str, say: Say) -> None:
    """Lock the graphics clock to a range in MHz inside the GPU's; NvmlError for another range or text."""
    example = "'gpuClkMin,gpuClkMax' or 'gpuClkVal' e.g. '--lock-gpu-clocks=1500,1500'"
    lowest, highest = _pair(value, example, one_is_enough=True)
    clocks = driver.machine.model.supported_clocks()
    supported = max(clocks.values(), key=len)
    if not min(supported) <= lowest <= highest <= max(supported):
        raise _refused(f"(gpuClkMin {lowest}, gpuClkMax {highest})", gpu)
    driver.settings.set(gpu, "graphics", [lowest, highest])
    say(f'GPU clocks set to "(gpuClkMin {lowest}, gpuClkMax {highest})" for GPU {gpu.bus_id}')


def _memory(driver: Driver, gpu: SimGpu, value: str, say: Say) -> None:
    """Lock the memory clock to a range in MHz.

    Raises:
        NvmlError: an end of the range is not a supported clock.
        _Unsupported: the model's memory clock cannot be locked.
    """
    example = "'memClkMin,memClkMax' or 'memClkVal' e.g. --lock-memory-clocks=5100,5100"
    lowest, highest = _pair(value, example, one_is_enough=True)
    if "locked-memory" not in driver.machine.model.features:
        raise _Unsupported(f"Setting locked Memory clocks is not supported for GPU {gpu.bus_id}.")
    if not {lowest, highest} <= set(driver.machine.model.supported_clocks()):
        raise _refused(f"(memClkMin {lowest}, memClkMax {highest})", gpu)
    driver.settings.set(gpu, "memory", [lowest, highest])
    say(f'Memory clocks set to "(memClkMin {lowest}, memClkMax {highest})" for GPU {gpu.bus_id}')


def _power(driver: Driver, gpu: SimGpu, value: str, say: Say) -> None:
    """Set the power limit in watts; NvmlError for one outside the model's range, or no number."""
    power = driver.machine.model.power
    try:
        wanted = float(value)
    except ValueError:
        raise NvmlError(_INVALID, f"Invalid power limit: {value}") from None
    if not power["minimum"] <= wanted <= power["maximum"]:
        raise NvmlError(
            _INVALID,
            f"Provided power limit {wanted:.2f} W is not a valid power limit which should be between "
            f"{power['minimum']:.2f} W and {power['maximum']:.2f} W for GPU {gpu.bus_id}\n{_EARLY_END}",
        )
    before = driver.settings.of(gpu).get("power", power["default"])
    driver.settings.set(gpu, "power", wanted)
    say(f"Power limit for GPU {gpu.bus_id} was set to {wanted:.2f} W from {before:.2f} W.")


def _ecc(driver: Driver, gpu: SimGpu, value: str, say: Say) -> None:
    """Set the mode of ECC; it becomes current after a reset or a reboot.

    Raises:
        NvmlError: the value is no mode.
        _Unsupported: the GPU has no ECC.
    """
    wanted = _state(_switch(value, "ECC configuration code"))
    current, pending = driver.settings.mode(gpu, "ecc")
    if current == "N/A":
        raise _Unsupported(f"ECC features not supported for GPU {gpu.bus_id}.")
    if pending == wanted:
        say(f"ECC support is already {wanted} for GPU {gpu.bus_id}.")
        return
    driver.settings.set_mode(gpu, "ecc", wanted)
    say(f"{wanted} ECC support for GPU {gpu.bus_id}.")


def _mig(driver: Driver, gpu: SimGpu, value: str, say: Say) -> None:
    """Set the mode of MIG; it becomes current after a reset or a reboot, on some models at once.

    Raises:
        NvmlError: the value is no mode.
        _Unsupported: the model has no MIG.
    """
    wanted = _switch(value, "MIG Mode")
    if driver.machine.model.mig is None:
        verb = "enable" if wanted else "disable"
        raise _Unsupported(f"Unable to {verb} MIG Mode for GPU {gpu.bus_id}: Not Supported")
    driver.settings.set_mode(gpu, "mig", _state(wanted))
    current, pending = driver.settings.mode(gpu, "mig")
    if current == pending:
        say(f"{_state(wanted)} MIG Mode for GPU {gpu.bus_id}")
        return
    verb = "enable" if wanted else "disable"
    say(f"Warning: MIG mode is in pending {verb} state for GPU {gpu.bus_id}:In use by another client")
    say(f"Reboot the system or try nvidia-smi --gpu-reset to make MIG mode effective on GPU {gpu.bus_id}")


def _compute(driver: Driver, gpu: SimGpu, value: str, say: Say) -> None:
    """Set the compute mode, by its name in any case or its number; NvmlError for another value."""
    names = {name.upper(): number for number, name in enumerate(COMPUTE_MODES)}
    mode = names.get(value.upper(), int(value) if value.isdigit() else len(COMPUTE_MODES))
    if mode >= len(COMPUTE_MODES):
        raise NvmlError(_INVALID, f"Invalid compute mode: {value}")
    driver.settings.set(gpu, "compute", mode)
    say(f"Set compute mode to {COMPUTE_MODES[mode].upper()} for GPU {gpu.bus_id}.")


def _reset(driver: Driver, gpu: SimGpu, value: str, say: Say) -> None:
    """Reset the GPU: pending modes of ECC and MIG become current, and of the other settings only persistence
    mode stays.

    Raises:
        NvmlError: the persistence daemon runs, or a program holds the GPU open.
    """
    if driver.settings.daemon_runs() or _holders(gpu):
        raise NvmlError(_IN_USE, f"{_NOT_RESET}  GPU {gpu.bus_id}: In use by another client\n")
    driver.settings.reset(gpu)
    say(f"GPU {gpu.bus_id} was successfully reset.")


def _holders(gpu: SimGpu) -> list[str]:
    """Return the paths of descriptors in /proc that hold the GPU's device file open."""
    device = f"/dev/nvidia{gpu.number}"
    return [str(link) for link in Path("/proc").glob("[0-9]*/fd/*") if _target(link) == device]


def _target(link: Path) -> str | None:
    """Return the target of a link; None if it was closed meanwhile."""
    try:
        return str(link.readlink())
    except OSError:
        return None


def _forget(name: str) -> Change:
    """Return the change that resets a setting to the driver's default, without a message."""

    def forget(driver: Driver, gpu: SimGpu, value: str, say: Say) -> None:
        driver.settings.set(gpu, name, None)

    return forget


CHANGES: dict[str, Change] = {
    "persistence": _persistence,
    "applications": _applications,
    "reset-applications": _forget("applications"),
    "graphics": _graphics,
    "reset-graphics": _forget("graphics"),
    "memory": _memory,
    "reset-memory": _forget("memory"),
    "power": _power,
    "ecc": _ecc,
    "mig": _mig,
    "compute": _compute,
    "reset": _reset,
}
"""Option name to its change of one GPU."""

_VOLATILE = ("applications", "graphics", "memory", "power", "compute")
_NOT_PERSISTENT = (
    "Warning: persistence mode is disabled on device {}. See the Known Issues section of the nvidia-smi(1) "
    "man page for more information. Run with [--help | -h] switch to get more information on how to enable "
    "persistence mode."
)


def _forbidden(name: str, gpu: SimGpu) -> str:
    """Return nvidia-smi's message for a change without permission; `name` is a key of `CHANGES`."""
    if "applications" in name or "graphics" in name or "memory" in name:
        return f"The current user does not have permission to change clocks for GPU {gpu.bus_id}."
    action = {
        "persistence": "set persistence mode",
        "ecc": "set ECC config",
        "compute": "set the compute mode",
        "reset": "reset GPU",
        "mig": "change MIG Mode",
        "power": "set power management limit",
    }[name]
    return f"Unable to {action} for GPU {gpu.bus_id}: Insufficient Permissions"


def _refused(combination: str, gpu: SimGpu) -> NvmlError:
    """Return the error for an unsupported combination of clocks."""
    text = f'Specified clock combination "{combination}" is not supported for GPU {gpu.bus_id}. {_HINT}'
    return NvmlError(_INVALID, f"{text}\n{_EARLY_END}")


def _pair(value: str, example: str, *, one_is_enough: bool = False) -> tuple[int, int]:
    """Parse two numbers with a comma; one number counts twice if it is enough. NvmlError for other text."""
    numbers = value.split(",")
    if one_is_enough and len(numbers) == 1:
        numbers *= 2
    if len(numbers) != 2 or not all(number.isdigit() for number in numbers):
        raise NvmlError(
            _INVALID, f'Specified clocks "{value}" are not valid. Please format input as {example}'
        )
    return int(numbers[0]), int(numbers[1])


def _switch(value: str, name: str) -> bool:
    """Return True for 1 or ENABLED, False for 0 or DISABLED, in any case; NvmlError for other text.

    Args:
        name: of the setting, for the error.
    """
    meaning = {"0": False, "DISABLED": False, "1": True, "ENABLED": True}
    if value.upper() not in meaning:
        raise NvmlError(_INVALID, f"Invalid {name}: {value}")
    return meaning[value.upper()]


def _state(enabled: bool) -> str:
    """Return `Enabled` or `Disabled`."""
    return "Enabled" if enabled else "Disabled"
