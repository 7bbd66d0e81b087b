"""Bad OpenPGP signatures in a key's name, made from its public part only."""

from __future__ import annotations

from gpuprov.untrusted import openpgp

BLANKS = ("\u00a0", "\u2003", "\x1f", "\t", " ")
LINE_ENDS = ("\u2028", "\u0085", "\x1e", "\r", "\n")
"""Characters that str.split and str.splitlines take for blanks and for ends of lines."""


def stating_good(fingerprint: str, blank: str, line_end: str) -> str:
    """Return a text that reads as gpgv's lines about a good signature by a key."""
    lines = (
        f"GOODSIG {fingerprint[-16:]} x",
        f"VALIDSIG {fingerprint} 2026-01-31 1 0 4 0 1 8 00 {fingerprint}",
    )
    return f"x{line_end}" + line_end.join(f"[GNUPG:] {line}" for line in lines).replace(" ", blank)


def forged_signature(keyring: bytes, stated: str) -> bytes:
    """Return a detached signature of nothing in a key's name, which states a text of its signer.

    A packet of version 4 (RFC 4880, section 5.2.3): times, issuer and Signer's User ID, then random numbers.
    """
    body = next(body for tag, body in openpgp._packets(keyring) if tag == openpgp.PUBLIC_KEY)
    key = bytes.fromhex(openpgp._fingerprint(body))
    hashed = (
        _subpacket(2, b"\x65\x00\x00\x00") + _subpacket(33, b"\x04" + key) + _subpacket(28, stated.encode())
    )
    issuer = _subpacket(16, key[-8:])
    numbers = b"\x01\x00" + b"\xff" * 32
    content = b"\x04\x00" + body[5:6] + b"\x08" + len(hashed).to_bytes(2, "big") + hashed
    content += len(issuer).to_bytes(2, "big") + issuer + b"\x00\x00" + numbers * 2
    return b"\xc2\xff" + len(content).to_bytes(4, "big") + content


def _subpacket(kind: int, content: bytes) -> bytes:
    """Return a signature's subpacket, with a length of five octets."""
    return b"\xff" + (len(content) + 1).to_bytes(4, "big") + bytes([kind]) + content
