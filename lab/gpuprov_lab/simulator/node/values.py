"""Values for the layouts: of the model, of the GPU, and of the driver's settings."""

from __future__ import annotations

import time
from typing import Any

from .driver import Driver
from .machine import SimGpu

NATIVE_CUDA = {
    450: "11.0",
    455: "11.1",
    460: "11.2",
    465: "11.3",
    470: "11.4",
    495: "11.5",
    510: "11.6",
    515: "11.7",
    520: "11.8",
    525: "12.0",
    530: "12.1",
    535: "12.2",
    545: "12.3",
    550: "12.4",
    555: "12.5",
    560: "12.6",
    565: "12.7",
    570: "12.8",
    575: "12.9",
    580: "13.0",
    590: "13.1",
    595: "13.2",
    610: "13.3",
    615: "13.4",
    620: "13.5",
}
"""The CUDA version that a driver branch reports (drivers.json, `native_cuda`)."""

COMPUTE_MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")


def values_of(driver: Driver, gpu: SimGpu) -> dict[str, str]:
    """Return the values of all placeholders of the layouts for one GPU."""
    settings = driver.settings.of(gpu)
    values = dict(driver.machine.model.values) | gpu.values
    values |= _identity(driver, gpu)
    values |= _memory(values)
    values |= _clocks(driver, gpu, settings)
    values |= _power(driver, settings)
    values |= _modes(driver, gpu, settings)
    values |= _fabric(driver)
    return values


def cuda_version(branch: int) -> str:
    """Return the CUDA version of the newest known branch that is not newer than this one, else of the oldest
    known.
    """
    return NATIVE_CUDA[max(known for known in NATIVE_CUDA if known <= max(branch, min(NATIVE_CUDA)))]


def _identity(driver: Driver, gpu: SimGpu) -> dict[str, str]:
    """Return values that name driver, GPU and PCI place."""
    device = driver.machine.model.device
    domain, bus, place = gpu.address.split(":")
    gsp = "gsp" in driver.machine.model.features
    return {
        "timestamp": time.strftime("%Y/%m/%d %H:%M:%S.") + f"{time.time_ns() // 1_000_000 % 1000:03}",
        "driver_version": driver.version,
        "count": str(len(driver.machine.gpus)),
        "uuid": gpu.uuid,
        "minor": str(gpu.number),
        "bus_id": gpu.bus_id,
        "pci_domain": domain.upper(),
        "pci_bus": bus.upper(),
        "pci_device": place.split(".")[0].upper(),
        "pci_device_id": (device["device"] + device["vendor"]).upper(),
        "pci_subsystem_id": (device["subsystem_device"] + device["subsystem_vendor"]).upper(),
        "pci_subclass": str(int(device["class"][2:4], 16)),
        "board_id": f"{int(bus, 16) << 8 | int(place.split('.')[0], 16):#x}",
        "gsp_firmware": driver.version if gsp else "N/A",
        "gsp_mode": "Enabled" if gsp else "N/A",
        "recovery_action": "None",
        "reset_required": "No",
        "display_mode": "[Requested functionality has been deprecated]"
        if driver.branch >= 580
        else "Enabled",
    }


def _memory(values: dict[str, str]) -> dict[str, str]:
    """Return free memory in MiB, rounded up as in the recordings, and free BAR1 memory."""
    total, reserved = int(values["memory_total"]), int(values["memory_reserved"])
    return {
        "memory_free": str(total - reserved + 1),
        "bar1_free": str(int(values["bar1_total"]) - 1),
    }


def _clocks(driver: Driver, gpu: SimGpu, settings: dict[str, Any]) -> dict[str, str]:
    """Return current, application, default and maximum clocks in MHz; some with their unit."""
    model = driver.machine.model
    default_memory, default_graphics = model.default_clocks
    memory, graphics = settings.get("applications", model.default_clocks)
    idle, maximum = model.clocks["idle"], model.clocks["maximum"]
    idle_graphics = int(gpu.values.get("idle_graphics", idle["graphics"]))
    lowest, highest = settings.get("graphics", (0, maximum["graphics"]))
    supported = "application-clocks" in model.features
    unsupported = "Requested functionality has been deprecated" if driver.branch >= 580 else "N/A"

    def shown(clock: int) -> str:
        return f"{clock} MHz" if supported else unsupported

    return {
        "clock_graphics": str(min(max(idle_graphics, lowest), highest)),
        "clock_memory": str(settings["memory"][1] if "memory" in settings else idle["memory"]),
        "clock_video": str(idle["video"]),
        "application_graphics": shown(graphics),
        "application_memory": shown(memory),
        "default_graphics": shown(default_graphics),
        "default_memory": shown(default_memory),
        "maximum_graphics": str(maximum["graphics"]),
        "maximum_memory": str(maximum["memory"]),
        "maximum_video": str(maximum["video"]),
        "customer_boost": f"{maximum['graphics']} MHz" if supported else "N/A",
    }


def _power(driver: Driver, settings: dict[str, Any]) -> dict[str, str]:
    """Return the power limit and its range in W, with two decimals."""
    power = driver.machine.model.power
    return {
        "power_limit": f"{settings.get('power', power['default']):.2f}",
        "power_default": f"{power['default']:.2f}",
        "power_minimum": f"{power['minimum']:.2f}",
        "power_maximum": f"{power['maximum']:.2f}",
    }


def _modes(driver: Driver, gpu: SimGpu, settings: dict[str, Any]) -> dict[str, str]:
    """Return persistence, compute mode, ECC, MIG and the state of remapped rows."""
    ecc_current, ecc_pending = driver.settings.mode(gpu, "ecc")
    mig_current, mig_pending = driver.settings.mode(gpu, "mig")
    remapper = "remapper" in driver.machine.model.features
    return {
        "persistence": "Enabled" if settings["persistence"] else "Disabled",
        "compute_mode": COMPUTE_MODES[settings.get("compute", 0)],
        "ecc_current": ecc_current,
        "ecc_pending": ecc_pending,
        "ecc_count": "0" if ecc_current == "Enabled" else "N/A",
        "ecc_flag": "No" if ecc_current == "Enabled" else "N/A",
        "mig_current": mig_current,
        "mig_pending": mig_pending,
        "remap_count": "0" if remapper else "N/A",
        "remap_flag": "No" if remapper else "N/A",
        "remap_pending": ("Yes" if driver.remap_pending(gpu) else "No") if remapper else "N/A",
    }


def _fabric(driver: Driver) -> dict[str, str]:
    """Return the fabric's state: complete once a fabric manager runs; on a guest the host runs it; `N/A`
    without a fabric.
    """
    state, status, joined = "N/A", "N/A", False
    if driver.machine.switches or driver.machine.fabric_outside:
        joined = driver.machine.fabric_outside or driver.fabric_manager_runs()
        state, status = ("Completed", "Success") if joined else ("In Progress", "N/A")
    return {
        "fabric_state": state,
        "fabric_status": status,
        "fabric_clique": "0" if joined else "N/A",
        "fabric_cluster": "00000000-0000-0000-0000-000000000000" if joined else "N/A",
    }
