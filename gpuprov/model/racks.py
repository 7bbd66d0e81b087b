"""Type of the places that a fleet states for its hosts: racks and NVLink domains."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from gpuprov.model.nodeset import expand

PLACE_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
"""Names that Slurm accepts as a switch or block, and Prometheus as a label's value."""
_TEXT = {"type": "string"}
_HOSTS = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}


def _listed(stated: object) -> list[str]:
    """Return host names from a range or a list of ranges; raise ValueError if it is not one, or empty."""
    hosts = expand(stated)
    if not hosts:
        raise ValueError("at least one host")
    return hosts


Grouping = dict[
    Annotated[str, Field(pattern=PLACE_NAME)],
    Annotated[list[str], BeforeValidator(_listed), WithJsonSchema(_HOSTS)],
]
"""Name of a place → the hosts there."""


def place_of_hosts(grouping: Grouping | None) -> dict[str, str]:
    """Return host → name of its place; empty if nothing is stated."""
    return {host: place for place, hosts in (grouping or {}).items() for host in hosts}
