"""Builder of a catalog release: data files, a manifest, its signature, and the same content as a wheel.

The wheel's layout is the "binary distribution format" of the Python packaging guide; it contains data and no
code.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import zipfile
from pathlib import Path

from gpuprov.catalog.releases import (
    MANIFEST,
    OWN,
    SIGNATURE,
    VERSION,
    Release,
    contents,
    digest,
    manifest_of,
    own,
)
from gpuprov.catalog.version import version
from gpuprov.errors import GpuprovError, InvalidInput
from gpuprov.files.writing import replace_file
from gpuprov.locking.catalogs.sources import INSIDE, PACKAGE

PATIENCE_S = 120  # with the time in which a person enters a passphrase


def seal(folder: Path, signer: str, *, stated: str | None = None, data: Path = OWN) -> tuple[Release, Path]:
    """Write a signed release into a new folder, and its wheel next to it.

    Args:
        folder: for the files; it must not exist.
        signer: the signing key, as for `gpg --local-user`: a fingerprint.
        stated: its version; by default that of the release shipped with gpuprov.
        data: the files to seal.

    Returns:
        The release and the path of the wheel.

    Raises:
        InvalidInput: not a version, or the folder exists.
        GpuprovError: gpg does not sign, as in `detached_signature`, or the folder cannot be written.
    """
    number = stated or str(own().version)
    if not VERSION.fullmatch(number):
        raise InvalidInput(f"version {number!r}", expected="a day, such as 2026.11.22 or 2026.11.22.1")
    if folder.exists():
        raise InvalidInput(f"{folder} already exists", do="name a new folder")
    files = contents(data)
    manifest = manifest_of(number, files)
    whole = {**files, MANIFEST: manifest, SIGNATURE: detached_signature(manifest, signer)}
    try:
        folder.mkdir(parents=True)
        for name, content in whole.items():
            replace_file(folder / name, content)
        wheel = folder.parent / f"{INSIDE}-{number}-py3-none-any.whl"
        _write_wheel(wheel, number, whole)
    except OSError as error:
        raise GpuprovError(f"{folder} cannot be written: {error.strerror}") from error
    return Release(folder, version(number), digest(number, files), signed=True), wheel


def detached_signature(content: bytes, signer: str) -> bytes:
    """Return gpg's armored detached signature of a content.

    Raises:
        GpuprovError: gpg is not installed, cannot sign with that key, or does not end within 120 s, for
            example because it waits for a passphrase.
    """
    command = [
        "gpg",
        "--batch",
        "--armor",
        "--digest-algo",
        "SHA256",
        "--local-user",
        signer,
        "--detach-sign",
    ]
    try:
        done = subprocess.run(command, input=content, capture_output=True, timeout=PATIENCE_S, check=False)
    except FileNotFoundError as error:
        raise GpuprovError("gpg is not installed here", do="install it (package gnupg)") from error
    except subprocess.TimeoutExpired:
        raise GpuprovError(
            f"gpg signed nothing for {signer} within {PATIENCE_S} s",
            do="enter the key's passphrase, or use a key without one",
        ) from None
    if done.returncode:
        raise GpuprovError(f"gpg signs nothing for {signer}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _write_wheel(path: Path, number: str, files: dict[str, bytes]) -> None:
    """Write a reproducible wheel to a path: the same files always result in the same bytes. An existing file
    is replaced.
    """
    about = f"{INSIDE}-{number}.dist-info"
    said = f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {number}\nSummary: The catalog of gpuprov\n"
    tags = "Wheel-Version: 1.0\nGenerator: gpuprov\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    entries = {f"{INSIDE}/{name}": content for name, content in sorted(files.items())}
    entries |= {f"{about}/METADATA": said.encode(), f"{about}/WHEEL": tags.encode()}
    record = "".join(
        f"{name},sha256={_record(content)},{len(content)}\n" for name, content in entries.items()
    )
    entries[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in entries.items():
            wheel.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)


def _record(content: bytes) -> str:
    """Return a file's hash as RECORD in a wheel has it: SHA256 in URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
