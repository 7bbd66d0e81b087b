"""The public keys that the fleet's user is to get; never a private one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuprov.errors import InvalidInput
from gpuprov.model.settings.access import PUBLIC_KEY
from gpuprov.ssh.route import Route


def public_keys(way: Route, stated: Sequence[Path]) -> tuple[str, ...]:
    """The lines of key files.

    Args:
        way: the fleet's to a node; its own key is taken where none is stated.
        stated: files of public keys.

    Raises:
        InvalidInput: no key, or a file that holds something else.
    """
    paths = list(stated)
    if not paths:
        own = [Path(f"{path}.pub").expanduser() for path in way.identity_files]
        paths = own if way.stated.identity_file else [path for path in own if path.is_file()][:1]
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
