"""Variables and expectations of GPU settings: persistence, clocks, power limit, modes."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import BY_HAND, COMMAND, DROP_IN, OTHER_FILE, OWN_FILE, fails, mends

CLOCKS_UNIT = "gpuprov-gpu-clocks.service"
PERSISTENCE_UNIT = "nvidia-persistenced.service"
MODES_UNIT = "gpuprov-gpu-modes.service"
UNITS = {
    "gpu.persistence_unit": PERSISTENCE_UNIT,
    "gpu.clocks_unit": CLOCKS_UNIT,
    "gpu.modes_unit": MODES_UNIT,
}

ANYBODY = "nvidia-smi run by root"
OVERRULED = (
    *fails("persistence", "gpu.persistence_unit", COMMAND),
    *mends("persistence", "gpu.persistence_unit", BY_HAND),
    *fails("persistence", "gpu.persistence_unit", OTHER_FILE),
    *mends("persistence", "gpu.persistence", ANYBODY),
    *fails("clocks", "gpu.clocks_unit", COMMAND),
    *fails("clocks", "gpu.clocks_unit", DROP_IN),
    *mends("clocks", "gpu.clocks_unit", OWN_FILE),
    *mends("clocks", "gpu.clocks", ANYBODY),
    *fails("power_limit", "gpu.modes_unit", COMMAND),
    *fails("power_limit", "gpu.modes_unit", DROP_IN),
    *mends("power_limit", "gpu.modes_unit", OWN_FILE),
    *mends("power_limit", "gpu.power_limit", ANYBODY),
    *mends("compute_mode", "gpu.compute_mode", ANYBODY),
    *mends("ecc", "gpu.ecc_pending", ANYBODY),
    *mends("mig", "gpu.mig_pending", ANYBODY),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected settings of the GPUs, and the units that set them at boot, as far as stated."""
    role = "gpu_settings"
    stated = []
    persistence = group.setting("persistence")
    if persistence is not None:
        unit = "enabled" if persistence else "disabled"
        stated += [
            Expectation("gpu.persistence_unit", unit, role),
            Expectation("gpu.persistence", persistence, role, needs_driver=True),
        ]
    clocks = group.setting("clocks")
    if clocks is not None:
        stated += [
            Expectation("gpu.clocks_unit", "enabled", role, subject=clocks_command(clocks)),
            Expectation("gpu.clocks", clocks, role, needs_driver=True),
        ]
    return [*stated, *_modes(group)]


def _modes(group: LockedGroup) -> list[Expectation]:
    """Return expected power limit (W) and modes, as far as stated; a GPU without a mode passes.

    No role corrects a power limit out of the range that a GPU allows.
    ECC and MIG are set at once (`pending`) and take effect by a reboot.
    """
    role = "gpu_settings"
    power, compute, ecc, mig = map(group.setting, ("power_limit", "compute_mode", "ecc", "mig"))
    stated = []
    if (power, compute, ecc, mig) != (None, None, None, None):
        stated.append(Expectation("gpu.modes_unit", "enabled", role, subject=modes_command(group)))
    if power is not None:
        stated.append(Expectation("gpu.power_range", power, None, needs_driver=True))
        stated.append(Expectation("gpu.power_limit", power, role, needs_driver=True))
    if compute is not None:
        stated.append(Expectation("gpu.compute_mode", compute, role, needs_driver=True))
    if ecc is not None:
        stated.append(Expectation("gpu.ecc_pending", ecc, role, needs_driver=True))
        stated.append(Expectation("gpu.ecc", ecc, None, reboot=True, needs_driver=True))
    if mig is not None:
        stated.append(Expectation("gpu.mig_pending", bool(mig), role, needs_driver=True))
        stated.append(Expectation("gpu.mig", bool(mig), None, reboot=True, needs_driver=True))
        stated.append(Expectation("gpu.mig_layout", sorted(mig), role, needs_driver=True))
    return stated


def clocks_command(clocks: dict[str, int]) -> str:
    """Return the command of the unit that sets clocks, in MHz: graphics, then memory if it is stated."""
    stated = (clocks.get(name) for name in ("graphics", "memory"))
    return " ".join(["/usr/local/sbin/gpuprov-gpu-clocks set", *(str(each) for each in stated if each)])


def modes_command(group: LockedGroup) -> str:
    """Return the command of the unit that sets power limit (W) and modes, as far as stated."""
    power, compute, ecc, mig = map(group.setting, ("power_limit", "compute_mode", "ecc", "mig"))
    words = {
        "power": power,
        "compute": compute and compute.upper(),
        "ecc": None if ecc is None else int(ecc),
        "mig": None if mig is None else ",".join(map(str, mig)) or "off",
    }
    stated = [f"{name}={value}" for name, value in words.items() if value is not None]
    return " ".join(["/usr/local/sbin/gpuprov-gpu-modes", *stated])


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return persistence, clocks (MHz), power limit (W) and modes; values that are not stated are None.

    The compute mode is then `unset`.
    """
    clocks = group.setting("clocks") or {}
    return {
        "gpu_settings_persistence": group.setting("persistence"),
        "gpu_settings_graphics_clock_mhz": clocks.get("graphics"),
        "gpu_settings_memory_clock_mhz": clocks.get("memory"),
        "gpu_settings_power_limit_w": group.setting("power_limit"),
        "gpu_settings_compute_mode": group.setting("compute_mode") or "unset",
        "gpu_settings_ecc": group.setting("ecc"),
        "gpu_settings_mig": group.setting("mig"),
    }
