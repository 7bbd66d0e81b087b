"""Public keys to install for the fleet's user; private keys are refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuprov.errors import InvalidInput
from gpuprov.model.settings.access import PUBLIC_KEY
from gpuprov.ssh.route import Route
from gpuprov.untrusted.stated import read_bounded, stated_path

ONE = "one line such as ssh-ed25519 AAAA… name"
LARGEST = 64 << 10
"""Maximum size in bytes; a key of 16384 bits has 3000."""


def public_keys(way: Route, stated: Sequence[Path]) -> tuple[str, ...]:
    """Return the keys in key files, as lines without duplicates.

    Args:
        way: the fleet's route to a node; without stated files its identity files are used, or else the first
            default key that exists.
        stated: files of public keys.

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
    return tuple(dict.fromkeys(found))


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
    if not stated or not all(map(PUBLIC_KEY.fullmatch, stated.values())):
        raise InvalidInput(f"{path} is not a public key", expected=ONE)
    if len(stated) > 1:
        where = ", ".join(map(str, list(stated)[:5]))
        raise InvalidInput(
            f"{path} has {len(stated)} keys (lines {where}{', …' if len(stated) > 5 else ''})",
            expected=ONE,
            do="write each key into a separate file: --key A.pub --key B.pub",
        )
    return stated.popitem()[1]
