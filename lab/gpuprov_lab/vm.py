"""Nodes with their own kernel: QEMU without hardware support boots a disk made from an ordinary node's tree.

Everything from power on to the login is real: firmware, GRUB with the configuration of the node's own
`update-grub`, Debian's kernel, initramfs and modules; `gpuprov_lab.selinux` leaves out the first two. A boot
takes minutes and a compiler half a day: work that takes processor time is done while the node is still an
ordinary one.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from pathlib import Path
from typing import Any

from gpuprov.errors import NodeFailed
from gpuprov_lab import efi, selinux
from gpuprov_lab.archive import ARCHIVES
from gpuprov_lab.host import execute, write_whole
from gpuprov_lab.login import Patience
from gpuprov_lab.variants import inside

# program → its Debian package, in addition to the tools of every lab
TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "mke2fs": "e2fsprogs"}
# Everything is emulated, on a machine that may be busy. Frequent attempts would keep sshd from answering.
PATIENCE = Patience(900.0, 30.0, 1.0)
FORWARDED = (22, 2222, 8008)
"""Ports of a machine that are reachable at its node's address."""
KEY_PAUSE_S = 1.0  # an emulated firmware polls the keyboard only now and then

SECTOR = 512
FIRST_SECTOR = 2048
"""Start of the only partition; GRUB's core is in the gap before it, as on any disk with an MBR."""
DISK_BYTES = 16 << 30  # sparse: unwritten blocks take no space
LINUX, SYSTEM = 0x83, 0xEF
BOOT_CODE = 440  # bytes of an MBR before the disk's signature and the four partitions

GRUB = "boot/grub/i386-pc"
# Steps of grub-install, except for finding the disk, which does not exist yet.
INSTALL_GRUB = f"""\
set -eu
apt-get -q update
apt-get -q -y install --no-install-recommends grub2-common grub-pc-bin
cp /usr/share/grub/default/grub /etc/default/grub
mkdir -p /{GRUB}
cp /usr/lib/grub/i386-pc/*.mod /usr/lib/grub/i386-pc/*.lst /{GRUB}
grub-mkimage -O i386-pc -p '(hd0,msdos1)/boot/grub' -o /{GRUB}/core.img biosdisk part_msdos ext2
systemctl enable systemd-networkd
"""
# Mitigations protect nothing here, and are slow where every jump is emulated.
COMMAND_LINE = "console=ttyS0 net.ifnames=0 mitigations=off"
SETTINGS = f"""\
GRUB_TIMEOUT=0
GRUB_TERMINAL=console
GRUB_CMDLINE_LINUX="{COMMAND_LINE}"
"""
# For the first boot, until the node's own update-grub has run with the disk.
FIRST_MENU = """\
linux /boot/vmlinuz-{kernel} root=/dev/vda1 ro {command_line}
initrd /boot/initrd.img-{kernel}
boot
"""
FILE_SYSTEMS = "/dev/vda1 / ext4 errors=remount-ro 0 1\n"
# QEMU's user network has these addresses, and is reachable only through the forwarded port.
NETWORK = "[Match]\nName=eth0\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\n"


def make_disk(root: Path, disk: Path, kernel: str, firmware: efi.Firmware | None = None) -> None:
    """Make a bootable disk from a tree, and install what it needs in the tree, which is not needed
    afterwards.

    Args:
        root: of a node that is off.
        kernel: the release of the first boot; afterwards GRUB decides.
        firmware: firmware with Secure Boot; without it the machine has a BIOS.
    """
    inside(root, efi.INSTALL if firmware else INSTALL_GRUB)
    write_whole(root / "etc/default/grub.d/gpuprov-lab.cfg", SETTINGS)
    write_whole(root / "boot/grub/grub.cfg", FIRST_MENU.format(kernel=kernel, command_line=COMMAND_LINE))
    write_whole(root / "etc/fstab", FILE_SYSTEMS)
    write_whole(root / "etc/systemd/network/80-gpuprov-lab.network", NETWORK)
    for package in (root / ARCHIVES).glob("*.deb"):
        package.unlink()
    part = disk.with_name(f".{disk.name}.part")
    part.unlink(missing_ok=True)
    with part.open("wb") as file:
        file.write(system_sectors() if firmware else boot_sectors(root))
        file.truncate(DISK_BYTES)
    start, end = FIRST_SECTOR * SECTOR, DISK_BYTES - (efi.ESP_BYTES if firmware else 0)
    execute(
        [
            *("mke2fs", "-q", "-F", "-t", "ext4", "-d", root, "-E", f"offset={start},lazy_itable_init=1"),
            # Features newer than the GRUB of Debian 12.
            *("-O", "^metadata_csum_seed,^orphan_file"),
            *(part, f"{(end - start) // 1024}k"),
        ]
    )
    if firmware:
        efi.write_system_partition(root, part, end // SECTOR)
        efi.write_variables(firmware, variables(disk))
    part.rename(disk)


def boot_sectors(root: Path) -> bytes:
    """Return a disk's first sectors: GRUB's boot code with a table of one partition, then GRUB's core."""
    code = (root / "usr/lib/grub/i386-pc/boot.img").read_bytes()[:BOOT_CODE]
    core = (root / GRUB / "core.img").read_bytes()
    table = _table(_partition(LINUX, FIRST_SECTOR, DISK_BYTES // SECTOR))
    return code.ljust(BOOT_CODE, b"\0") + table + core


def system_sectors() -> bytes:
    """Return a disk's first sectors for firmware that boots from the second partition, at the end of the
    disk.
    """
    last = (DISK_BYTES - efi.ESP_BYTES) // SECTOR
    return bytes(BOOT_CODE) + _table(
        _partition(LINUX, FIRST_SECTOR, last), _partition(SYSTEM, last, DISK_BYTES // SECTOR)
    )


def _table(*partitions: bytes) -> bytes:
    """Return the end of an MBR: signature, table with up to four partitions, and mark."""
    return bytes(6) + b"".join(partitions).ljust(64, b"\0") + b"\x55\xaa"


def _partition(kind: int, first: int, end: int) -> bytes:
    """Return an entry of an MBR's table, from a sector to the one before `end`; one of Linux is bootable."""
    nowhere = b"\xfe\xff\xff"  # cylinder, head and sector beyond their range
    bootable = 0x80 if kind == LINUX else 0
    return struct.pack("<B3sB3sII", bootable, nowhere, kind, nowhere, first, end - first)


def variables(disk: Path) -> Path:
    """Return the file of the firmware's variables; without that file the machine has a BIOS."""
    return disk.with_name("firmware.vars")


def boot_command(disk: Path, address: str, namespace: Path) -> list[str]:
    """Return the command that starts the machine, its console on stdout; it ends when the node powers off.

    Args:
        address: of the node on the lab network; SSH there reaches the machine.
        namespace: path of the node's network namespace.
    """
    direct = selinux.boot_arguments(disk)
    kind = "qcow2" if direct else "raw"
    forwarded = ",".join(f"hostfwd=tcp:{address}:{port}-:{port}" for port in FORWARDED)
    return [
        *("nsenter", f"--net={namespace}", "qemu-system-x86_64", "-no-user-config", "-nodefaults"),
        # One plain processor: synchronisation with a second one costs more than it gains if few are free.
        *("-accel", "tcg", "-cpu", "qemu64", "-smp", "1", "-m", "2048"),
        *(efi.machine(variables(disk)) if variables(disk).exists() else ()),
        *("-display", "none", "-serial", "stdio", "-qmp", f"unix:{_socket(disk)},server=on,wait=off"),
        *("-drive", f"file={disk},format={kind},if=virtio,cache=unsafe"),
        *("-netdev", f"user,id=net,{forwarded}", "-device", "virtio-net-pci,netdev=net"),
        *("-device", "virtio-rng-pci"),
        *direct,
    ]


def press_power_button(disk: Path) -> None:
    """Press the power button of a running machine; its systemd then shuts down in order."""
    _tell(disk, {"execute": "system_powerdown"})


def press_keys(disk: Path, *keys: str) -> None:
    """Press keys of a running machine's keyboard one after another, with a pause of `KEY_PAUSE_S`, by QEMU's
    names: `ret`, `down`, `a`.
    """
    for key in keys:
        stroke = {"keys": [{"type": "qcode", "data": key}]}
        _tell(disk, {"execute": "send-key", "arguments": stroke})
        time.sleep(KEY_PAUSE_S)


def save_state(disk: Path, name: str) -> None:
    """Save memory, devices and disk of a running machine under a name; see `load_state`.

    Raises:
        NodeFailed: QEMU cannot save them: the disk is not one of `gpuprov_lab.selinux`.
    """
    _order(disk, f"savevm {name}")


def load_state(disk: Path, name: str) -> None:
    """Return a running machine to a saved state; its connections of that time are dead.

    Raises:
        NodeFailed: there is no such state.
    """
    _order(disk, f"loadvm {name}")


def _order(disk: Path, line: str) -> None:
    """Run a line of QEMU's monitor for people; raise NodeFailed with the text that it prints."""
    answer = _tell(disk, {"execute": "human-monitor-command", "arguments": {"command-line": line}})
    if answer.get("return") != "":
        raise NodeFailed(f"QEMU: {line}: {answer}")


def _tell(disk: Path, command: dict[str, Any]) -> dict[str, Any]:
    """Send one command to QEMU's monitor, and return its answer; events before it are skipped."""
    answer: dict[str, Any] = {}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(_socket(disk)))
        with connection.makefile("rw") as monitor:
            monitor.readline()
            for each in ({"execute": "qmp_capabilities"}, command):
                monitor.write(json.dumps(each) + "\n")
                monitor.flush()
                answer = {"event": ""}
                while "event" in answer:
                    answer = json.loads(monitor.readline() or "{}")
    return answer


def _socket(disk: Path) -> Path:
    """Return the path of QEMU's monitor."""
    return disk.with_suffix(".qmp")
