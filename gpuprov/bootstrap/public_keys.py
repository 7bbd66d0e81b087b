"""The public keys that the fleet's user is to get; never a private one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuprov.errors import InvalidInput
from gpuprov.model.lock import Connection
from gpuprov.model.settings.access import PUBLIC_KEY


def public_keys(fleet: Connection, stated: Sequence[Path]) -> tuple[str, ...]:
    """The lines of key files.

    Args:
        fleet: its login, whose own key is taken where none is stated.
        stated: files of public keys.

    Raises:
        InvalidInput: no key, or a file that holds something else.
    """
    paths = list(stated)
    if not paths and fleet.identity_file:
        paths = [Path(fleet.identity_file + ".pub").expanduser()]
    if not paths:
        raise InvalidInput(
            "no public key to install", do="state --key FILE.pub, or ssh.identity_file in fleet.yml"
        )
    found: list[str] = []
    for path in paths:
        if not path.is_file():
            raise InvalidInput(f"the public key {path} does not exist", do="state --key FILE.pub")
        found += [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    wrong = [line for line in found if not PUBLIC_KEY.fullmatch(line)]
    if wrong or not found:
        raise InvalidInput(
            f"{paths[0]} is not a public key", expected="one line such as ssh-ed25519 AAAA… name"
        )
    return tuple(found)
