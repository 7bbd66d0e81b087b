"""Checksums of a release, their signature, and the line that verifies both."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpuprov.errors import GpuprovError
from gpuprov.locking.catalogs.sealing import detached_signature
from maintenance.release.pyz import digest

SUMS, SIGNATURE, KEYRING = "SHA256SUMS", "SHA256SUMS.asc", "gpuprov-release.gpg"
VERIFY = (
    f"gpgv --keyring ./{KEYRING} {SIGNATURE} {SUMS} && sha256sum --check --strict --ignore-missing {SUMS}"
)
"""Line that a user types in the folder of the downloaded files; it fails if a byte of one differs."""


def sign(folder: Path, signer: str) -> str:
    """Write the checksums of all files in a folder, their signature, and the public key as gpgv's keyring.

    Args:
        signer: the signing key, as for `gpg --local-user`: a fingerprint.

    Returns:
        The fingerprint of the key.

    Raises:
        GpuprovError: gpg is not installed or has no such key.
    """
    names = sorted(path.name for path in folder.iterdir() if path.name not in (SUMS, SIGNATURE, KEYRING))
    sums = "".join(f"{digest(folder / name)}  {name}\n" for name in names)
    signature = detached_signature(sums.encode(), signer)
    (folder / SUMS).write_text(sums)
    (folder / SIGNATURE).write_bytes(signature)
    (folder / KEYRING).write_bytes(_gpg("--export-options", "export-minimal", "--export", signer))
    listed = _gpg("--with-colons", "--fingerprint", "--list-keys", signer).decode()
    return next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))


def _gpg(*words: str) -> bytes:
    """Run gpg; return its standard output; raise GpuprovError if it fails or prints nothing."""
    done = subprocess.run(["gpg", "--batch", *words], capture_output=True, check=False)
    if done.returncode or not done.stdout:
        raise GpuprovError(f"gpg {' '.join(words)}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
