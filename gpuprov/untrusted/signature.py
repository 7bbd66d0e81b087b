"""OpenPGP signatures of repository indexes, checked by gpgv with one keyring only."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpuprov.errors import GpuprovError, InvalidInput, Refused
from gpuprov.untrusted.openpgp import UNSIGNED, Keyring, Keys, binary, fingerprints, label

WEAK_HASHES = {"1": "MD5", "2": "SHA-1", "3": "RIPEMD-160"}
"""Hash numbers of RFC 4880, section 9.4, that are not accepted in signatures."""

CLEARSIGNED = b"-----BEGIN PGP SIGNED MESSAGE-----"
"""First line of a clear-signed text (RFC 9580, section 7); gpgv would also unpack a binary message."""
OUTPUT_BYTES = 64 << 20
"""Maximum size of a file that gpgv writes; Debian's largest index has some 200 KiB."""
GPGV_S = 60
"""Seconds within which gpgv has to end."""
NOT_BAD = (0, 2)
"""Exit statuses of gpgv without a bad signature: all are valid, or some cannot be checked (no key)."""
HASH, PRIMARY = 7, 9
"""Fields of VALIDSIG: the hash's number, and the primary key's fingerprint (doc/DETAILS of GnuPG)."""
UNSIGNED_MIRROR = "sign the mirror, or declare it trusted without a signature"
"""Remedy in messages about a repository without a signature."""


@dataclass(frozen=True)
class _Verdict:
    """gpgv's result for one signature.

    Attributes:
        key: id or fingerprint of the key that signed; empty if gpgv reports none.
        trouble: why it is not valid, to follow `NAME is`; empty if it is valid.
        do: the remedy.
        bad: it does not match the file; no other signature makes up for that.
    """

    key: str
    trouble: str
    do: str
    bad: bool = False


def require_gpgv() -> None:
    """Check that gpgv is installed; to be called before anything is fetched.

    Raises:
        GpuprovError: gpgv is not installed.
    """
    if shutil.which("gpgv") is None:
        raise GpuprovError(
            "gpgv is not installed here: signatures of repositories cannot be checked",
            do="install it: package gpgv (Debian, Ubuntu), gnupg2 (RHEL, SUSE), gnupg (Homebrew)",
        )


def required_keys(keyring: Keyring | None, url: str) -> Keys | None:
    """Return the keys to check with; None only for `unsigned`.

    Raises:
        InvalidInput: no key was given: a missing key must not disable the check.
    """
    if keyring is None:
        raise InvalidInput(
            f"no key is known for {url}",
            do="name the repository's key file, or state `unsigned` to use it without a check",
        )
    return None if keyring == UNSIGNED else keyring


def verify_inline(text: bytes, keyring: Keys, name: str) -> bytes:
    """Return the signed text of a clear-signed file, such as InRelease.

    One valid signature is enough, but a bad one refuses the file even if another is valid; signatures that
    cannot be checked do not, see `_judge`.

    Args:
        text: the file.
        keyring: the keys that may sign it; no others are used.
        name: name of the file, for messages.

    Raises:
        Refused: no signature is valid, one is bad, or gpgv does not end in time; the message gives the
            reason.
        InvalidInput: the keyring cannot be read.
        GpuprovError: gpgv is not installed.
    """
    if not text.startswith(CLEARSIGNED):
        raise Refused(
            f"{name} is not signed",
            expected=f"a text that begins with {CLEARSIGNED.decode()}",
            do=UNSIGNED_MIRROR,
        )
    with tempfile.TemporaryDirectory(prefix="gpuprov-gpgv-") as folder:
        signed, plain = Path(folder, "signed"), Path(folder, "plain")
        signed.write_bytes(text)
        _judge(["--output", str(plain), str(signed)], keyring, Path(folder), name)
        return plain.read_bytes()


def verify_detached(text: bytes, signature: bytes, keyring: Keys, name: str) -> None:
    """Check a file against its detached signature (Release.gpg, repomd.xml.asc).

    One valid signature is enough, but a bad one refuses the file even if another is valid, see `_judge`.

    Args:
        text: the signed file.
        signature: its signature.
        keyring: the keys that may sign it; no others are used.
        name: name of the file, for messages.

    Raises:
        Refused, InvalidInput, GpuprovError: as verify_inline.
    """
    with tempfile.TemporaryDirectory(prefix="gpuprov-gpgv-") as folder:
        signed, detached = Path(folder, "signed"), Path(folder, "signature")
        signed.write_bytes(text)
        detached.write_bytes(signature)
        _judge([str(detached), str(signed)], keyring, Path(folder), name)


def _judge(arguments: list[str], keyring: Keys, folder: Path, name: str) -> None:
    """Run gpgv with one keyring only; return if at least one signature is valid and no signature is bad.

    A signature that does not match the file, or is not by a primary key of the keyring, is bad. One by an
    unknown, expired or revoked key, one with a weak hash, and an expired one are neither valid nor bad. gpgv
    may write at most `OUTPUT_BYTES`.

    Args:
        arguments: gpgv's options and files.
        folder: temporary folder for the keyring, and gpgv's home.

    Raises:
        Refused: no signature is valid, one is bad, or gpgv does not end within `GPGV_S`.
        InvalidInput: the keyring cannot be read.
        GpuprovError: gpgv is not installed.
    """
    keys = folder / "keys.gpg"
    keys.write_bytes(binary(keyring))
    gpgv = ["gpgv", "--homedir", str(folder), "--keyring", str(keys), "--status-fd", "1", *arguments]
    limited = ["/bin/sh", "-c", 'ulimit -f "$0" && exec "$@"', str(OUTPUT_BYTES // 512)]
    require_gpgv()
    try:
        done = subprocess.run([*limited, *gpgv], capture_output=True, timeout=GPGV_S, check=False)
    except subprocess.TimeoutExpired:
        raise Refused(
            f"{name}: gpgv did not end within {GPGV_S} s", do="check what the mirror serves"
        ) from None
    verdicts = _verdicts(done.stdout, label(keyring), fingerprints(keyring))
    if not verdicts:
        raise Refused(f"{name} is not signed", do=UNSIGNED_MIRROR)
    bad = [verdict for verdict in verdicts if verdict.bad]
    if done.returncode in NOT_BAD and not bad and any(not verdict.trouble for verdict in verdicts):
        return
    first = next(iter(bad or filter(lambda verdict: verdict.trouble, verdicts)), None)
    if first is None:
        raise Refused(f"{name}: gpgv ended with {done.returncode}", do="check what the mirror serves")
    raise Refused(f"{name} is {first.trouble}", do=first.do)


def _verdicts(status: bytes, keyring: str, primaries: Collection[str]) -> list[_Verdict]:
    """Return one verdict for each signature in gpgv's status lines (doc/DETAILS of GnuPG).

    A signature can put its own text into these lines. gpgv escapes ASCII blanks and line ends in it and no
    others, so that only bytes may separate lines and words here: `str.split` knows more of them.

    Args:
        keyring: name of the keyring, for messages.
        primaries: fingerprints of its primary keys.
    """
    signatures: list[dict[str, list[str]]] = []
    for line in status.split(b"\n"):
        mark, _, rest = line.partition(b" ")
        keyword, *fields = rest.decode("ascii", errors="backslashreplace").split(" ")
        if mark == b"[GNUPG:]" and keyword == "NEWSIG":
            signatures.append({})
        elif mark == b"[GNUPG:]" and signatures:
            signatures[-1][keyword] = fields
    return [_verdict(said, keyring, primaries) for said in signatures]


def _verdict(said: dict[str, list[str]], keyring: str, primaries: Collection[str]) -> _Verdict:
    """Return the verdict in the status lines of one signature, keyword → fields; the first trouble counts.

    It is valid only with both GOODSIG and VALIDSIG, by one of the primary keys, and with a hash that is not
    in `WEAK_HASHES`.
    """
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
    valid = dict(enumerate(said.get("VALIDSIG", [])))
    if weak := WEAK_HASHES.get(valid.get(HASH, "")):
        return _Verdict(
            key,
            f"signed with {weak}, which is broken",
            "sign the repository with SHA-256 or better",
        )
    if "GOODSIG" in said and valid.get(PRIMARY) in primaries:
        return _Verdict(key, "", "")
    return _Verdict(
        key,
        f"not the file that key {key} signed",
        "do not install from it: the file was changed in transit or on the mirror",
        bad=True,
    )


def _expiry(said: dict[str, list[str]]) -> str:
    """Return ` on DATE` of the key's end; empty if gpgv reports none."""
    when = said.get("KEYEXPIRED", [""])[0]
    return f" on {datetime.fromtimestamp(int(when), UTC):%Y-%m-%d}" if when.isdecimal() else ""
