"""OpenPGP signatures of repository indexes, judged by gpgv against one keyring and nothing else."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import subprocess
import tempfile
import textwrap
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from gpuprov.errors import GpuprovError, InvalidInput, Refused

ARMOR = re.compile(r"-----BEGIN PGP PUBLIC KEY BLOCK-----(.*?)-----END PGP PUBLIC KEY BLOCK-----", re.DOTALL)
WEAK_HASHES = {"1": "MD5", "2": "SHA-1", "3": "RIPEMD-160"}
"""Hash numbers of RFC 4880, section 9.4, that no signature may rest on."""

PUBLIC_KEY = 6
"""Tag of a primary key's packet (RFC 4880, section 4.3)."""

Keys = Path | bytes
"""A keyring file, or the keys themselves; binary or armored."""

UNSIGNED: Final = "unsigned"
Keyring = Keys | Literal["unsigned"]
"""The keys that may sign a repository, or the word of somebody who takes it unsigned."""


@dataclass(frozen=True)
class _Verdict:
    """What gpgv said of one signature; `trouble` is empty when it holds."""

    key: str
    trouble: str
    do: str


def required_keys(keyring: Keyring | None, url: str) -> Keys | None:
    """The keys to check with; None only where somebody said `unsigned`.

    Raises:
        InvalidInput: nobody said anything: an unknown key is no reason to check none.
    """
    if keyring is None:
        raise InvalidInput(
            f"no key is known for {url}",
            do="name the repository's key file, or say `unsigned` to take it without a check",
        )
    return None if keyring == UNSIGNED else keyring


def verify_inline(text: bytes, keyring: Keys, name: str) -> bytes:
    """The signed text of a clear-signed file, such as InRelease.

    Raises:
        Refused: no signature in it holds; the message says why.
        InvalidInput: the keyring cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="gpuprov-gpgv-") as folder:
        signed, plain = Path(folder, "signed"), Path(folder, "plain")
        signed.write_bytes(text)
        _judge(["--output", str(plain), str(signed)], keyring, Path(folder), name)
        return plain.read_bytes()


def verify_detached(text: bytes, signature: bytes, keyring: Keys, name: str) -> None:
    """Checks a file against a signature beside it (Release.gpg, repomd.xml.asc).

    Raises:
        Refused, InvalidInput: as verify_inline.
    """
    with tempfile.TemporaryDirectory(prefix="gpuprov-gpgv-") as folder:
        signed, detached = Path(folder, "signed"), Path(folder, "signature")
        signed.write_bytes(text)
        detached.write_bytes(signature)
        _judge([str(detached), str(signed)], keyring, Path(folder), name)


def _judge(arguments: list[str], keyring: Keys, folder: Path, name: str) -> None:
    keys = folder / "keys.gpg"
    keys.write_bytes(_binary(keyring))
    command = ["gpgv", "--homedir", str(folder), "--keyring", str(keys), "--status-fd", "1", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    except FileNotFoundError as error:
        raise GpuprovError("gpgv is not installed here", do="install it (package gpgv, or gnupg2)") from error
    verdicts = _verdicts(done.stdout.decode(errors="replace"), _label(keyring))
    if any(not verdict.trouble for verdict in verdicts):
        return
    if not verdicts:
        raise Refused(
            f"{name} bears no signature", do="the mirror must be signed, or declared trusted as it is"
        )
    first = verdicts[0]
    raise Refused(f"{name} is {first.trouble}", do=first.do)


def _verdicts(status: str, keyring: str) -> list[_Verdict]:
    """One verdict for each signature in gpgv's status lines (doc/DETAILS of GnuPG)."""
    found: list[_Verdict] = []
    for block in status.split("[GNUPG:] NEWSIG")[1:]:
        lines = {words[1]: words[2:] for line in block.splitlines() if len(words := line.split()) > 1}
        found.append(_verdict(lines, keyring))
    return found


def _verdict(said: dict[str, list[str]], keyring: str) -> _Verdict:
    signed_by = {word: words[0] for word, words in said.items() if word.endswith("SIG") and words}
    key = next((signed_by[word] for word in signed_by if word != "VALIDSIG"), "")
    renew = f"take the repository's current key into {keyring}"
    if "NO_PUBKEY" in said:
        key = said["NO_PUBKEY"][0]
        return _Verdict(
            key,
            f"signed by key {key}, which is not in {keyring}",
            f"the key was rotated, or this is not the repository that was meant: {renew}",
        )
    if "EXPKEYSIG" in said:
        return _Verdict(key, f"signed by key {key}, which has expired{_expiry(said)}", renew)
    if "REVKEYSIG" in said:
        return _Verdict(key, f"signed by key {key}, which was revoked", renew)
    if "EXPSIG" in said:
        return _Verdict(
            key, f"signed by key {key} with a signature that has expired", "sync the mirror again"
        )
    weak = WEAK_HASHES.get(said["VALIDSIG"][7] if "VALIDSIG" in said else "")
    if weak:
        return _Verdict(
            key,
            f"signed with {weak}, which is broken",
            "the repository has to be signed with SHA-256 or better",
        )
    if "GOODSIG" in said and "VALIDSIG" in said:
        return _Verdict(key, "", "")
    return _Verdict(
        key,
        f"not what key {key} signed",
        "the file was changed on its way or on the mirror: do not install from it",
    )


def _expiry(said: dict[str, list[str]]) -> str:
    when = said.get("KEYEXPIRED", [""])[0]
    return f" on {datetime.fromtimestamp(int(when), UTC):%Y-%m-%d}" if when.isdigit() else ""


def _label(keyring: Keys) -> str:
    return str(keyring) if isinstance(keyring, Path) else "the keys given"


def _binary(keyring: Keys) -> bytes:
    """Keys as gpgv reads them: every armored block decoded (RFC 4880, section 6.2)."""
    try:
        content = keyring.read_bytes() if isinstance(keyring, Path) else keyring
    except OSError as error:
        raise InvalidInput(
            f"keyring {_label(keyring)}: {error.strerror}", do="name the repository's key file"
        ) from error
    if not content.lstrip().startswith(b"-----BEGIN PGP"):
        return content
    blocks = ARMOR.findall(content.decode("ascii", errors="replace").replace("\r\n", "\n"))
    try:
        return b"".join(_unarmor(block) for block in blocks)
    except binascii.Error as error:
        raise InvalidInput(f"keyring {_label(keyring)}: {error}", expected="an armored public key") from error


def _unarmor(block: str) -> bytes:
    _, _, body = block.partition("\n\n")
    data = "".join(line for line in body.split() if not line.startswith("="))
    return base64.b64decode(data, validate=True)


def armored(keyring: Keys) -> str:
    """The keys as text, in one block: the same keys always give the same text (RFC 4880, section 6)."""
    content = _binary(keyring)
    lines = textwrap.wrap(base64.b64encode(content).decode(), 64)
    check = base64.b64encode(_crc24(content).to_bytes(3, "big")).decode()
    edge = "PGP PUBLIC KEY BLOCK-----"
    return "\n".join([f"-----BEGIN {edge}", "", *lines, f"={check}", f"-----END {edge}", ""])


def _crc24(content: bytes) -> int:
    """RFC 4880, section 6.1."""
    crc = 0xB704CE
    for byte in content:
        crc ^= byte << 16
        for _ in range(8):
            crc = crc << 1 ^ (0x1864CFB if crc & 0x800000 else 0)
    return crc


def fingerprints(keyring: Keys) -> list[str]:
    """Fingerprints of the primary keys in a keyring, 40 hexadecimal digits each, in capitals.

    The SHA-1 of a version 4 public-key packet (RFC 4880, sections 4.2 and 12.2): it names a key, as everybody
    writes it, and is no signature.
    """
    content, found = _binary(keyring), []
    while content:
        tag, body, content = _packet(content)
        if tag == PUBLIC_KEY and body[:1] == b"\x04":
            named = b"\x99" + len(body).to_bytes(2, "big") + body
            found.append(hashlib.sha1(named, usedforsecurity=False).hexdigest().upper())
    return found


def _packet(content: bytes) -> tuple[int, bytes, bytes]:
    """Tag and body of the first OpenPGP packet, and what follows it; raises InvalidInput when it is none."""
    head = content[0]
    if not head & 0x80:
        raise InvalidInput("not an OpenPGP key", expected="a keyring, binary or armored")
    if head & 0x40:
        tag, (start, length) = head & 0x3F, _new_length(content)
    else:
        tag, start = head >> 2 & 0x0F, 1 + (1 << (head & 3))
        length = int.from_bytes(content[1:start], "big")
    return tag, content[start : start + length], content[start + length :]


def _new_length(content: bytes) -> tuple[int, int]:
    """Where the body of a new-format packet starts, and its length (RFC 4880, section 4.2.2)."""
    first = content[1] if len(content) > 1 else 0
    if first < 192:
        return 2, first
    if first < 224:
        return 3, ((first - 192) << 8) + content[2] + 192
    return 6, int.from_bytes(content[2:6], "big")
