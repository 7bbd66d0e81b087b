"""Public keys to install for the fleet's user; private keys are refused."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from gpuprov.errors import InvalidInput
from gpuprov.model.settings.access import PUBLIC_KEY
from gpuprov.ssh.route import Route
from gpuprov.untrusted.stated import read_bounded, stated_path

ONE = "one line such as ssh-ed25519 AAAA… name"
LARGEST = 64 << 10
"""Maximum size in bytes; a key of 16384 bits has 3000."""


def public_keys(
    way: Route, stated: Sequence[Path], narrate: Callable[[str], None] = lambda line: None
) -> tuple[str, ...]:
    """Return the keys in key files, as lines without duplicates.

    Args:
        way: the fleet's route to a node; without stated files its identity files are used, or else the first
            default key that exists.
        stated: files of public keys.
        narrate: called with path and fingerprint of each key that is in no stated file: another person may
            have written the fleet that names it.

    Raises:
        InvalidInput: there is no key, or a file contains other text or several keys.
    """
    paths = list(stated)
    if not paths:
        own = [stated_path(f"{path}.pub") for path in way.identity_files]
        paths = own if way.stated.identity_file else [path for path in own if path.is_file()][:1]
    if not paths:
        raise InvalidInput(
            "no public key to install", do="state --key FILE.pub, or ssh.identity_file in fleet.yml"
        )
    found: list[str] = []
    for path in paths:
        if not path.is_file():
            raise InvalidInput(f"the public key {path} does not exist", do="state --key FILE.pub")
        found.append(_key(path))
        if not stated:
            narrate(f"may log in: {path}  {_fingerprint(found[-1])}")
    return tuple(dict.fromkeys(found))


def _is_key(line: str) -> bool:
    """Return whether a line has the form of a public key."""
    try:
        return bool(PUBLIC_KEY.fullmatch(line) and base64.b64decode(line.split()[1]))
    except ValueError:
        return False


def _fingerprint(line: str) -> str:
    """Return the fingerprint of a public key as `ssh-keygen -l` prints it."""
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _key(path: Path) -> str:
    """Return the only key in a file; a line with options before the key (`command=`) is not a public key.

    Raises:
        InvalidInput: the file is larger than `LARGEST`, or contains no key, several keys or other text.
    """
    try:
        lines = read_bounded(path, LARGEST).decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", expected=ONE) from None
    stated = {number: line.strip() for number, line in enumerate(lines, start=1) if line.strip()}
    if not stated or not all(map(_is_key, stated.values())):
        raise InvalidInput(f"{path} is not a public key", expected=ONE)
    if len(stated) > 1:
        where = ", ".join(map(str, list(stated)[:5]))
        raise InvalidInput(
            f"{path} has {len(stated)} keys (lines {where}{', …' if len(stated) > 5 else ''})",
            expected=ONE,
            do="write each key into a separate file: --key A.pub --key B.pub",
        )
    return stated.popitem()[1]
