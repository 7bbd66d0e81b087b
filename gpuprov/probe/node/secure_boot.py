"""Collector of Secure Boot: what shim and kernel enforce, and the certificates of both and of firmware."""

import glob
import hashlib
import os
import re
import struct

from gpuprov.probe.node.base import collector, find_program, read_or_none, run_anyway, text_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpuprov.probe.node.base import Values

VARIABLES = "/sys/firmware/efi/efivars/"
WHOLE = "/sys/firmware/efi/mok-variables/"  # too long for efivars; without the four bytes of attributes
X509 = bytes.fromhex("a159c0a5e494a74a87b5ab155c2bf072")  # EFI_CERT_X509_GUID
# Name of a certificate in one of the kernel's keyrings, except those that sign radio regulations.
KEY = r"(?m) asymmetri (.+): [0-9a-f]+: X509\.\w+ [0-9a-f]+ \["
LISTS = ("db", "dbx", "MokListRT", "MokListXRT")
"""Variables of firmware and shim with allowed and forbidden certificates."""


@collector(seconds=10)
def secure_boot(parameters: "Values") -> "Any":
    """Return what shim and kernel enforce, the vendor, and the keys and certificates; not whether Secure Boot
    is on, which `system` reports.

    `keys` are the owner's, from mokutil, and `kernel` those of the kernel, by name; `certificates` is
    variable → SHA-256s. `keys` is null without mokutil or EFI; `lockdown` is null if the kernel has none.
    """
    lockdown = re.search(r"\[(\w+)\]", text_in("/sys/kernel/security/lockdown"))
    keys = None
    if find_program("mokutil") and os.path.isdir("/sys/firmware/efi"):
        keys = re.findall(r"(?m)^\s*Subject:.*?CN\s*=\s*(.+)$", run_anyway("mokutil", "--list-enrolled")[1])
    return {
        "lockdown": lockdown.group(1) if lockdown else None,
        "keys": keys,
        "enforced": text_in("/sys/module/module/parameters/sig_enforce") == "Y",
        "ignored_by_shim": _variable("MokSBStateRT") == b"\1",
        "vendor": text_in("/sys/class/dmi/id/sys_vendor"),
        "kernel": sorted(set(re.findall(KEY, read_or_none("/proc/keys") or ""))),
        "certificates": {name: list(_certificates(_variable(name))) for name in LISTS},
    }


def _variable(name: str) -> bytes:
    """Return a variable of the firmware or of shim, without its attributes; b"" if it does not exist.

    Args:
        name: without the GUID.
    """
    if os.path.exists(WHOLE + name):
        with open(WHOLE + name, "rb") as file:
            return file.read()
    for path in glob.glob(VARIABLES + name + "-*"):
        with open(path, "rb") as file:
            return file.read()[4:]
    return b""


def _certificates(lists: bytes) -> "Iterator[str]":
    """Yield the SHA-256 of each X.509 certificate in EFI_SIGNATURE_LISTs (UEFI specification 32.4.1).

    It ends at a list that is malformed.
    """
    while len(lists) >= 28:
        size, before, each = struct.unpack_from("<III", lists, 16)
        if not 28 <= size <= len(lists) or each <= 16:
            return
        if lists[:16] == X509:
            for at in range(28 + before, size - each + 1, each):
                yield hashlib.sha256(lists[at + 16 : at + each]).hexdigest()
        lists = lists[size:]
