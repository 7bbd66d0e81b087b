"""`host.secure_boot`: enforcement by firmware and kernel, and enrolled certificates."""

from __future__ import annotations

import base64
import hashlib
import re

from gpuprov.verify.observers.base import Observed

STATE = "od -An -tu1 -j4 -N1 /sys/firmware/efi/efivars/SecureBoot-*"
ENFORCED = (
    "grep -qsE '\\[(integrity|confidentiality)\\]' /sys/kernel/security/lockdown"
    " || grep -qs Y /sys/module/module/parameters/sig_enforce"
)
NOT_BY_SHIM = "od -An -tu1 -j4 -N1 /sys/firmware/efi/efivars/MokSBStateRT-* 2>/dev/null | grep -q 1"
# Shim's list as the kernel exports it, including entries too long for a variable, and the firmware's own.
LISTS = (
    "for list in /sys/firmware/efi/mok-variables/MokListRT /sys/firmware/efi/efivars/MokListRT*"
    " /sys/firmware/efi/efivars/db-*; do [ ! -e $list ] || cat $list; done | base64 -w0"
)


class SecureBoot(Observed):
    """Test Secure Boot.

    >>> host.secure_boot.state
    'on'
    """

    @property
    def state(self) -> str:
        """`no EFI`, `off`, `on`, or `on, and not enforced`."""
        result = self.run(STATE)
        if result.failed:
            return "no EFI"
        if result.stdout.strip() != "1":
            return "off"
        enforced = self.run(ENFORCED).succeeded and self.run(NOT_BY_SHIM).failed
        return "on" if enforced else "on, and not enforced"

    def knows(self, fingerprint: str) -> bool:
        """Return whether a certificate is enrolled, by its SHA-256.

        Every DER sequence of a certificate's size is hashed, independent of the format of the lists around
        it.
        """
        lists = base64.b64decode(self.ask(LISTS))
        starts = (found.start() for found in re.finditer(b"(?=\x30\x82)", lists))
        sizes = ((at, int.from_bytes(lists[at + 2 : at + 4], "big") + 4) for at in starts)
        return any(hashlib.sha256(lists[at : at + size]).hexdigest() == fingerprint for at, size in sizes)

    def __repr__(self) -> str:
        return "<secure_boot>"
