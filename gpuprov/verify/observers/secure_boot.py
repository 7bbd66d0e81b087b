"""`host.secure_boot`: enforcement by firmware and kernel, and enrolled certificates."""

from __future__ import annotations

import base64
import hashlib

from gpuprov.errors import NodeFailed
from gpuprov.verify.observers.base import Observed

STATE = "od -An -tu1 -j4 -N1 /sys/firmware/efi/efivars/SecureBoot-*"
ENFORCED = (
    "grep -qsE '\\[(integrity|confidentiality)\\]' /sys/kernel/security/lockdown"
    " || grep -qs Y /sys/module/module/parameters/sig_enforce"
)
HASHED_BYTES = 64 << 20
"""Maximum size of all sequences that are hashed, each counted with `_EACH` more; a certificate contains
several, and the lists have at most some hundred KiB.
"""
_EACH = 256
NOT_BY_SHIM = "od -An -tu1 -j4 -N1 /sys/firmware/efi/efivars/MokSBStateRT-* 2>/dev/null | grep -q 1"
# Shim's list as the kernel exports it, including entries too long for a variable, and the firmware's own.
LISTS = (
    "for list in /sys/firmware/efi/mok-variables/MokListRT /sys/firmware/efi/efivars/MokListRT*"
    " /sys/firmware/efi/efivars/db-*; do [ ! -e $list ] || cat $list; done | base64 -w0"
)


class SecureBoot(Observed):
    """Observer of Secure Boot.

    >>> host.secure_boot.state
    'on'
    """

    @property
    def state(self) -> str:
        """Secure Boot by the firmware's variable: `no EFI`, `off`, `on`, or `on, and not enforced`.

        Without a readable variable it is `no EFI`. It is not enforced if the kernel loads unsigned modules,
        or if shim's validation is disabled.
        """
        result = self.run(STATE)
        if result.failed:
            return "no EFI"
        if result.stdout.strip() != "1":
            return "off"
        enforced = self.run(ENFORCED).succeeded and self.run(NOT_BY_SHIM).failed
        return "on" if enforced else "on, and not enforced"

    def knows(self, fingerprint: str) -> bool:
        """Return whether a certificate is enrolled, in shim's list (MOK) or the firmware's (db).

        Args:
            fingerprint: SHA-256 of the certificate in lower-case hexadecimal digits.

        Raises:
            NodeFailed: the lists cannot be read, or contain more than certificates.
        """
        lists = base64.b64decode(self.ask(LISTS))
        return is_enrolled(lists, fingerprint)

    def __repr__(self) -> str:
        return "<secure_boot>"


def is_enrolled(lists: bytes, fingerprint: str) -> bool:
    """Return whether lists contain a certificate, by its SHA-256 in lower-case hexadecimal digits.

    Every DER sequence of a certificate's size is hashed, independent of the format of the lists around it.

    Args:
        lists: content of the variables, one after the other; may be empty.

    Raises:
        NodeFailed: the sequences have more than `HASHED_BYTES`.
    """
    left, at = HASHED_BYTES, lists.find(_SEQUENCE)
    while at >= 0:
        size = int.from_bytes(lists[at + 2 : at + 4], "big") + 4
        left -= size + _EACH
        if left < 0:
            raise NodeFailed("the lists of Secure Boot contain more than certificates")
        if hashlib.sha256(lists[at : at + size]).hexdigest() == fingerprint:
            return True
        at = lists.find(_SEQUENCE, at + 1)
    return False


_SEQUENCE = b"\x30\x82"  # DER: a sequence whose length has two bytes
