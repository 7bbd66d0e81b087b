"""Installation of the simulator into a node's root tree, before the node boots."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from gpuprov_lab.simulator.machines import describe, for_node, pci_devices
from gpuprov_lab.simulator.node.places import HOME
from gpuprov_lab.simulator.server import write_server

PROGRAMS = Path("usr/lib/gpuprov-sim")
PYTHONS = ("usr/bin/python3", "usr/libexec/platform-python")
"""Programs of a node's own Python; a node that plays RHEL 8 has the second."""
HOOK = """\
# The simulator's stand-ins exist while the packages that they stand in for are unpacked.
post-invoke=/usr/lib/gpuprov-sim/arrange
"""
LAUNCHER = """\
#!/usr/lib/gpuprov-sim/python3 -IS
import sys

sys.path.insert(0, "/usr/lib/gpuprov-sim")
from node.main import main

sys.exit(main("{name}", sys.argv[1:]))
"""
# kmod itself answers a dry run: it is part of every drift, and the simulator starts much more slowly.
MODPROBE = """\
#!/bin/sh
case " $* " in *" --show-depends "*) exec /usr/lib/gpuprov-sim/kmod/modprobe "$@" ;; esac
exec /usr/lib/gpuprov-sim/bin/modprobe-simulated "$@"
"""
# Programs of kmod that access the kernel; their folders differ between releases.
KMOD_PROGRAMS = ("modprobe", "rmmod", "insmod", "lsmod")
# Debian installs nvidia-smi elsewhere and links it as an alternative; NVIDIA's packages use /usr/bin.
DRIVER_PROGRAMS = (
    "/usr/lib/nvidia/current/nvidia-smi",
    "/usr/bin/nvidia-smi",
    "/usr/bin/nvidia-persistenced",
    "/usr/bin/nv-fabricmanager",
)


UNITS = {
    "gpuprov-sim.service": "sysinit.target",
    "gpuprov-sim-log.service": "systemd-journald.service",
}
"""Units of the simulator → the unit that starts them."""
DPKG = ("var/lib/dpkg", "usr/lib/gpuprov-lab/debian/dpkg")
"""Folders that dpkg's database may be in: the second on a node that plays a system without dpkg."""


def install(root: Path, machine: str) -> None:
    """Install the simulator of a machine into a node's root tree, and divert the programs that it simulates;
    a repeated call changes the machine.

    Raises:
        InvalidInput: no such machine.
    """
    description = for_node(machine)
    _copy_program(root)
    home = root / HOME
    if home.exists():
        shutil.rmtree(home)
    home.mkdir(parents=True)
    (home / "machine.json").write_text(json.dumps(description, indent=1) + "\n")
    for device in pci_devices(machine):
        _write_pci_device(home / "pci" / device["address"], device)
    write_server(root, describe(machine))
    targets = [*_kmod_paths(root), *DRIVER_PROGRAMS]
    (root / PROGRAMS / "targets").write_text("".join(f"{target}\n" for target in targets))
    for target in targets:
        _divert(root, target)
    if _dpkg(root) == DPKG[0]:
        _write(root / "etc/dpkg/dpkg.cfg.d/gpuprov-sim", HOOK)
    subprocess.run([root / PROGRAMS / "arrange", root], check=True)
    for unit, target in UNITS.items():
        wanted = root / f"etc/systemd/system/{target}.wants" / unit
        wanted.parent.mkdir(parents=True, exist_ok=True)
        wanted.unlink(missing_ok=True)
        wanted.symlink_to(f"/usr/lib/systemd/system/{unit}")


def nspawn_arguments(root: Path, machine: str) -> list[str]:
    """Return arguments that make systemd-nspawn show the hardware and leave room for the driver's files.

    Args:
        root: the node's root tree, with the simulator installed.
        machine: its machine; all of them need the same arguments today.
    """
    return [
        f"--bind-ro={root / HOME / 'pci'}:/sys/bus/pci/devices",
        "--tmpfs=/proc/driver",
        "--tmpfs=/sys/module",
    ]


def _copy_program(root: Path) -> None:
    """Copy the simulator into a root, with its units and one launcher for each simulated program; replace an
    earlier copy.
    """
    programs = root / PROGRAMS
    if programs.exists():
        shutil.rmtree(programs)
    with as_file(files(__package__)) as package:
        for folder in ("node", "layouts"):
            shutil.copytree(package / folder, programs / folder, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(package / "arrange", programs / "arrange")
        for unit in UNITS:
            _write(root / "usr/lib/systemd/system" / unit, (package / unit).read_text())
    (programs / "arrange").chmod(0o755)
    own = next((path for path in PYTHONS if (root / path).is_symlink()), PYTHONS[0])
    (programs / "python3").symlink_to(f"/{own}")
    for name in {Path(target).name for target in DRIVER_PROGRAMS} | {*KMOD_PROGRAMS, "gpuprov-sim"}:
        _write_program(programs / "bin" / name, LAUNCHER.format(name=name))
    _write_program(programs / "bin/modprobe-simulated", LAUNCHER.format(name="modprobe"))
    _write_program(programs / "bin/modprobe", MODPROBE)
    (programs / "kmod").mkdir()
    (programs / "kmod/modprobe").symlink_to("/bin/kmod")  # which takes its task from its name
    link = root / "usr/sbin/gpuprov-sim"
    link.unlink(missing_ok=True)
    link.symlink_to("/usr/lib/gpuprov-sim/bin/gpuprov-sim")


def _kmod_paths(root: Path) -> list[str]:
    """Return the paths of kmod's programs in a root; empty if the package is not installed."""
    contents = root / _dpkg(root) / "info/kmod.list"
    paths = contents.read_text().splitlines() if contents.exists() else []
    return [path for path in paths if Path(path).name in KMOD_PROGRAMS and "/share/" not in path]


def _divert(root: Path, target: str) -> None:
    """Make dpkg install a program as `TARGET.distrib`, so that the simulator's can be in its place."""
    subprocess.run(
        [
            *("dpkg-divert", "--quiet", "--instdir", str(root), "--admindir", str(root / _dpkg(root))),
            *("--package", "gpuprov-simulator", "--rename"),
            *("--add", "--divert", f"{target}.distrib", target),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _dpkg(root: Path) -> str:
    """Return the folder of dpkg's database in a root."""
    return next(folder for folder in DPKG if (root / folder).exists())


def _write_pci_device(folder: Path, device: dict[str, Any]) -> None:
    """Write a PCI device as sysfs shows it, with the head of its configuration space for lspci."""
    numbers = ("vendor", "device", "subsystem_vendor", "subsystem_device", "class")
    for name in numbers:
        _write(folder / name, f"0x{device[name]}\n")
    vendor, model, subsystem_vendor, subsystem, kind = (int(device[name], 16) for name in numbers)
    ids = f"v{vendor:08X}d{model:08X}sv{subsystem_vendor:08X}sd{subsystem:08X}"
    base, sub, interface = kind.to_bytes(3, "big")
    _write(folder / "modalias", f"pci:{ids}bc{base:02X}sc{sub:02X}i{interface:02X}\n")
    _write(folder / "numa_node", f"{device['numa_node']}\n")
    _write(folder / "irq", "0\n")
    _write(folder / "enable", "1\n")
    _write(folder / "resource", "0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 7)
    header = struct.pack("<HHHHB3s", vendor, model, 0, 0, 0, kind.to_bytes(3, "little"))
    tail = struct.pack("<HH", subsystem_vendor, subsystem)
    (folder / "config").write_bytes((header.ljust(0x2C, b"\0") + tail).ljust(64, b"\0"))


def _write_program(path: Path, text: str) -> None:
    """Write an executable file."""
    _write(path, text)
    path.chmod(0o755)


def _write(path: Path, text: str) -> None:
    """Write a file, and create its folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
