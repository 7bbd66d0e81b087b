"""Form of the settings in a lock: as in a fleet, with what `gpuprov lock` adds to some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from gpuprov.model.documents import Strict, first_error
from gpuprov.model.forms import PackageName
from gpuprov.model.settings import Settings
from gpuprov.model.settings.access import Firewall, Ssh, network
from gpuprov.model.settings.storage import StorageClient

PORTS = r"^[0-9]{1,5}( [0-9]{1,5})*$"


class _Options(Strict):
    """sshd's options; only that of the ports is read by gpuprov itself."""

    model_config = Strict.model_config | {"extra": "allow"}
    __pydantic_extra__: dict[str, str]

    Port: Annotated[str, Field(pattern=PORTS)]


class _LockedSsh(Ssh):
    """SSH with sshd's options."""

    options: _Options


def _element(text: str) -> str:
    """Return an element of a set as nft prints it, unchanged: a network, or an address for one of a single
    address; ValueError for another text.
    """
    network(text)
    return text


class _Ruleset(Strict):
    """Table of the firewall: sets with their networks, and rules."""

    networks: dict[str, list[Annotated[str, AfterValidator(_element)]]]
    input: list[str]
    forward: list[str]


class _LockedFirewall(Firewall):
    """Firewall with its table."""

    ruleset: _Ruleset


class LockedSettings(Settings):
    """Every setting as a lock has it; storage clients have their package."""

    ssh: _LockedSsh | None = None
    firewall: _LockedFirewall | None = None
    storage_clients: dict[StorageClient, PackageName] | None = None  # type: ignore[assignment]


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of settings by their names, with the defaults of values that a lock does not state.

    Those with unknown names, of a newer gpuprov, are returned unchanged.

    Raises:
        ValueError: a value has another form; the message names the first one, and what was expected.
    """
    known = {name: value for name, value in values.items() if name in LockedSettings.model_fields}
    try:
        read = LockedSettings.model_validate(known)
    except ValidationError as error:
        place, said = first_error(error)
        raise ValueError(f"{place} as `gpuprov lock` writes it ({said})") from None
    return {**values, **read.model_dump(mode="json", include=set(known), exclude_none=True)}
