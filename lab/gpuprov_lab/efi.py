"""Firmware that enforces Secure Boot: OVMF with keys in its variables, Debian's own shim, GRUB and kernel.

The platform key is the lab's own; Microsoft's certificates, which signed shim, come from virt-firmware, as
does writing variables that otherwise only a user at the console or the owner of a board may write.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gpuprov.errors import GpuprovError
from gpuprov_lab.host import execute, require_tools

# program → its Debian package
TOOLS = {"mformat": "mtools", "openssl": "openssl"}
# The build that guards its variables by System Management Mode, which Secure Boot depends on.
CODE, VARIABLES = (Path(f"/usr/share/OVMF/OVMF_{each}.fd") for each in ("CODE_4M.secboot", "VARS_4M"))
PACKAGE = "ovmf"
ESP_BYTES = 64 << 20
OWNER = "6c3bbb0e-7d23-4b8e-9c39-2f6f1f2c9e51"
"""GUID of the owner of a key in a variable; any value works."""

INSTALL = """\
set -eu
apt-get -q update
apt-get -q -y install --no-install-recommends \
    grub2-common grub-efi-amd64-bin grub-efi-amd64-signed shim-signed mokutil
cp /usr/share/grub/default/grub /etc/default/grub
mkdir -p /boot/grub
systemctl enable systemd-networkd
"""
SHIM, GRUB = "usr/lib/shim", "usr/lib/grub/x86_64-efi-signed"
# file of the EFI system partition → file of the node
FILES = {
    "EFI/BOOT/BOOTX64.EFI": f"{SHIM}/shimx64.efi.signed",
    "EFI/BOOT/mmx64.efi": f"{SHIM}/mmx64.efi.signed",
    "EFI/BOOT/grubx64.efi": f"{GRUB}/grubx64.efi.signed",
}
# The signed GRUB reads its configuration here; this one includes the node's own.
CONFIGURATION = "EFI/debian/grub.cfg"
TO_THE_NODES = "set root=(hd0,msdos1)\nset prefix=($root)/boot/grub\nconfigfile $prefix/grub.cfg\n"


@dataclass(frozen=True)
class Firmware:
    """Certificates (files in PEM) that are enrolled before the first boot.

    Attributes:
        db: in the firmware's own list, as by a cloud's image property or a board's owner.
        mok: in shim's list, as by the owner with mokutil and at the console.
    """

    db: tuple[Path, ...] = ()
    mok: tuple[Path, ...] = ()


def require_firmware() -> None:
    """Install missing tools and the firmware from the machine's package archive.

    Raises:
        GpuprovError: not a machine with apt, or virt-firmware is missing.
    """
    require_tools(TOOLS if CODE.exists() else {**TOOLS, str(CODE): PACKAGE})
    if find_spec("virt.firmware") is None:
        raise GpuprovError("virt-firmware is not installed", do="pip install virt-firmware")


def write_system_partition(root: Path, disk: Path, first_sector: int) -> None:
    """Make a FAT file system on a disk from a sector on, with shim, GRUB and MOK manager at the default boot
    path.

    Args:
        root: tree with the signed programs of Debian.

    Raises:
        NodeFailed: mtools fails.
    """
    place = f"{disk}@@{first_sector * 512}"
    sectors = str(ESP_BYTES // 512)
    execute(
        ["mformat", "-i", place, "-F", "-T", sectors, "-h", "64", "-s", "32", "-H", str(first_sector), "::"]
    )
    execute(["mmd", "-i", place, "::EFI", "::EFI/BOOT", "::EFI/debian"])
    for there, here in FILES.items():
        execute(["mcopy", "-i", place, root / here, f"::{there}"])
    execute(["mcopy", "-i", place, "-", f"::{CONFIGURATION}"], input=TO_THE_NODES)


def write_variables(firmware: Firmware, path: Path) -> None:
    """Write the firmware's variables: Secure Boot on, a new platform key, Microsoft's keys and those of
    `firmware` enrolled.

    Args:
        path: of the file; if it exists, a virtual node boots by this firmware.
    """
    platform = path.with_name("platform.pem")
    words = ["openssl", "req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj"]
    execute([*words, "/CN=gpuprov lab platform/", "-keyout", "/dev/null", "-out", platform])
    enrolled = [
        *("--set-pk", OWNER, platform, "--add-kek", OWNER, platform),
        *(word for each in firmware.db for word in ("--add-db", OWNER, each)),
        *(word for each in firmware.mok for word in ("--add-mok", OWNER, each)),
    ]
    part = path.with_name(f".{path.name}.part")
    shutil.copy(VARIABLES, part)
    write = (sys.executable, "-m", "virt.firmware.vars", "--inplace", part, "--enroll-microsoft")
    execute([*write, *enrolled, "--sb"])
    part.rename(path)


def machine(variables: Path) -> list[str]:
    """Return QEMU's arguments for a machine with this firmware."""
    return [
        *("-machine", "q35,smm=on", "-global", "ICH9-LPC.disable_s3=1"),
        *("-global", "driver=cfi.pflash01,property=secure,value=on"),
        *("-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={CODE}"),
        *("-drive", f"if=pflash,unit=1,format=raw,file={variables}"),
    ]
