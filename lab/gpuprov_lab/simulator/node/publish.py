"""Files of a loaded module: /sys/module, /proc/driver/nvidia, /dev/nvidia*, PCI driver links."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .files import Files
from .machine import Machine, SimGpu

_MODULE_SIZES = {"nvidia": 14299136, "nvidia_uvm": 1830912, "nouveau": 2433024}
_NVIDIA_MAJOR = 195
_UVM_MAJOR = 238
_PARAMETERS = {
    "ResmanDebugLevel": "4294967295",
    "RmLogonRC": "1",
    "ModifyDeviceFiles": "1",
    "DeviceFileUID": "0",
    "DeviceFileGID": "0",
    "DeviceFileMode": "438",
    "EnableMSI": "1",
    "EnableStreamMemOPs": "0",
    "NvLinkDisable": "0",
    "PreserveVideoMemoryAllocations": "0",
    "DynamicPowerManagement": "3",
    "RegistryDwords": '""',
    "GpuBlacklist": '""',
    "ExcludedGpus": '""',
}
"""Lines of /proc/driver/nvidia/params of a 580.159.04 driver that programs read."""


def publish(files: Files, machine: Machine, modules: dict[str, dict[str, str]]) -> None:
    """Write the node's files for these loaded modules (name to `version` and `flavour`), and for no others.

    Raises OSError if the node's /proc/driver or /dev cannot be written.
    """
    import shutil  # slow to load, and no nvidia-smi needs it

    _publish_sys_modules(files, modules)
    for path in (files.proc_driver, files.proc_switches.parent):
        if path.exists():
            shutil.rmtree(path)
    nvidia = modules.get("nvidia")
    if nvidia is not None:
        _publish_proc(files, machine, nvidia)
    _publish_devices(files, machine, modules)
    owner = "nvidia" if nvidia is not None else "nouveau" if "nouveau" in modules else None
    for address in (gpu.address for gpu in machine.gpus):
        _link_driver(files.pci / address / "driver", owner)
    for address in machine.switches:
        _link_driver(files.pci / address / "driver", "nvidia-nvswitch" if nvidia is not None else None)


def version_line(nvidia: dict[str, str]) -> str:
    """Return the first line of /proc/driver/nvidia/version."""
    if nvidia["flavour"] == "open":
        return f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {nvidia['version']}  Release Build"
    return f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {nvidia['version']}  Release Build"


def _publish_sys_modules(files: Files, modules: dict[str, dict[str, str]]) -> None:
    """Write the folders of the loaded modules below /sys/module, and remove the folders of others."""
    import shutil

    files.sys_module.mkdir(parents=True, exist_ok=True)
    for path in files.sys_module.iterdir():
        if path.name not in modules:
            shutil.rmtree(path)
    for name, facts in modules.items():
        _write(files.sys_module / name / "initstate", "live")
        _write(files.sys_module / name / "refcnt", "0")
        _write(files.sys_module / name / "coresize", str(_MODULE_SIZES.get(name, 131072)))
        _write(files.sys_module / name / "taint", "" if name == "nouveau" else "OE")
        if "version" in facts:
            _write(files.sys_module / name / "version", facts["version"])


def _publish_proc(files: Files, machine: Machine, nvidia: dict[str, str]) -> None:
    """Write version, parameters, GPUs and switches below /proc/driver."""
    _write(files.proc_driver / "version", f"{version_line(nvidia)}\nGCC version:  gcc version 12.2.0 (GCC)")
    parameters = _PARAMETERS | {"RmProfilingAdminOnly": nvidia.get("admin_only", "1")}
    _write(files.proc_driver / "params", "\n".join(f"{key}: {value}" for key, value in parameters.items()))
    for gpu in machine.gpus:
        _write(files.proc_driver / "gpus" / gpu.address / "information", _information(machine, gpu, nvidia))
    for address in machine.switches:
        _write(files.proc_switches / address, "")


def _information(machine: Machine, gpu: SimGpu, nvidia: dict[str, str]) -> str:
    """Return the text of a GPU's file `information`."""
    rows = {
        "Model": machine.model.name,
        "IRQ": str(41 + gpu.number),
        "GPU UUID": gpu.uuid,
        "Video BIOS": machine.model.values["vbios"].lower(),
        "Bus Type": "PCIe",
        "DMA Size": "52 bits",
        "DMA Mask": "0xfffffffffffff",
        "Bus Location": gpu.address,
        "Device Minor": str(gpu.number),
        "GPU Firmware": nvidia["version"],
        "GPU Excluded": "No",
    }
    return "\n".join(f"{key + ':':<15} {value}" for key, value in rows.items())


def _publish_devices(files: Files, machine: Machine, modules: dict[str, dict[str, str]]) -> None:
    """Create the device files of the loaded modules, and remove others of NVIDIA's."""
    wanted: dict[str, tuple[int, int]] = {}
    if "nvidia" in modules:
        wanted = {f"nvidia{gpu.number}": (_NVIDIA_MAJOR, gpu.number) for gpu in machine.gpus}
        wanted["nvidiactl"] = (_NVIDIA_MAJOR, 255)
    if "nvidia_modeset" in modules:
        wanted["nvidia-modeset"] = (_NVIDIA_MAJOR, 254)
    if "nvidia_uvm" in modules:
        wanted |= {"nvidia-uvm": (_UVM_MAJOR, 0), "nvidia-uvm-tools": (_UVM_MAJOR, 1)}
    files.dev.mkdir(exist_ok=True)
    for path in files.dev.glob("nvidia*"):
        if path.name not in wanted:
            path.unlink()
    for name, (major, minor) in wanted.items():
        path = files.dev / name
        if not path.exists():
            _make_device(files, path, os.makedev(major, minor))


def _make_device(files: Files, path: Path, device: int) -> None:
    """Create a character device, or in a tree that is not running an empty file."""
    if files.real:
        os.mknod(path, 0o666 | stat.S_IFCHR, device)
        path.chmod(0o666)
    else:
        path.touch()


def _link_driver(link: Path, driver: str | None) -> None:
    """Replace a PCI device's link to its driver; None removes it."""
    link.unlink(missing_ok=True)
    if driver is not None:
        link.symlink_to(f"../../../../bus/pci/drivers/{driver}")


def _write(path: Path, text: str) -> None:
    """Write a file with a final newline, unless it is empty, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n" if text else "")
