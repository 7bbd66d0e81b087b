"""Machines in the outputs of a Terraform or OpenTofu configuration: `terraform output -json`.

Outputs have no fixed format: an address, a list of them, name → address, or objects with fields named as in
providers. Outputs with `private` in their name count only if there are no others.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any

from gpuprov.errors import InvalidInput
from gpuprov.inventory.imports.fields import Fields
from gpuprov.inventory.imports.machine import LONGEST, Machine
from gpuprov.model.connection import Destination, parse_destination
from gpuprov.untrusted import on_one_line

ADDRESS = (
    *("public_ip", "public_ip_address", "nat_ip", "access_ip_v4", "ipv4_address", "ip", "ip_address"),
    *("address", "ssh_host", "host", "hostname", "fqdn", "private_ip", "private_ip_address"),
)
"""Fields with a machine's address, in order of preference."""
NAME = ("name", "label", "display_name", "hostname", "id")
USER, PORT = ("ssh_user", "user", "username", "admin_username"), ("ssh_port", "port")
KIND = {"instance_type": "aws", "machine_type": "gcp", "size": "azure", "shape": "oci"}
SITE = ("availability_zone", "zone", "location", "region")
Values = Mapping[str, Any]


def is_outputs(document: Any) -> bool:
    """Return whether a document is of `terraform output -json`: each entry has a value and a type."""
    return (
        isinstance(document, dict)
        and bool(document)
        and all(isinstance(each, dict) and {"value", "type"} <= each.keys() for each in document.values())
    )


def machines(document: Values) -> list[Machine]:
    """Return the machines of the outputs, grouped by the output's name.

    Raises:
        InvalidInput: no output names a machine.
    """
    found = {name: list(_machines(name, each["value"])) for name, each in document.items()}
    found = {name: listed for name, listed in found.items() if listed}
    public = {name: listed for name, listed in found.items() if "private" not in name.lower()}
    if not found:
        raise InvalidInput(
            f"none of the outputs names a machine: {on_one_line(', '.join(document)[:LONGEST])}",
            expected="addresses, name → address, or objects with such fields as name, public_ip, user, port",
        )
    return [machine for listed in (public or found).values() for machine in listed]


def _machines(output: str, value: Any) -> Iterator[Machine]:
    """Yield the machines in the value of an output: an address, an object with an address, or several of them
    in a list or an object. Other values are ignored.

    Raises:
        InvalidInput: as `_of_fields`.
    """
    if isinstance(value, str):
        yield from _of_text(output, output, value)
    elif isinstance(value, dict) and _has_address(value):
        yield _of_fields(output, output, value)
    elif isinstance(value, (dict, list)):
        rows = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in rows:
            name = str(key) if isinstance(value, dict) else f"{output}-{key}"
            if isinstance(each, str):
                yield from _of_text(output, name, each)
            elif isinstance(each, dict) and _has_address(each):
                yield _of_fields(output, name, each)


def _of_text(output: str, name: str, text: str) -> Iterator[Machine]:
    """Yield a machine if the text is an IP address, with or without user and port."""
    try:
        to = parse_destination(text)
        ipaddress.ip_address(to.host)
    except ValueError:
        return
    yield Machine(_plain(name), to.host, _plain(output), ssh=_ssh(to))


def _of_fields(output: str, name: str, values: Values) -> Machine:
    """Return the machine that an object's fields describe; `name` counts if they state no name.

    Raises:
        InvalidInput: a field has another form.
    """
    fields = Fields(values, f"output {output}: {name}")
    kinds = {cloud: fields.text(key) for key, cloud in KIND.items()}
    try:
        to = parse_destination(fields.text(*ADDRESS))
    except ValueError as error:
        raise InvalidInput(f"{on_one_line(fields.place)}: {error}") from None
    stated = Destination(to.user or fields.text(*USER) or None, to.host, to.port or fields.number(*PORT))
    return Machine(
        _plain(fields.label(*NAME) or name),
        to.host,
        _plain(output),
        instance=next((f"{cloud}:{kind}" for cloud, kind in kinds.items() if kind), None),
        site=fields.text(*SITE) or None,
        ssh=_ssh(stated),
    )


def _has_address(values: Values) -> bool:
    """Return whether an object is a machine: one of the fields of an address is stated."""
    return any(values.get(name) for name in ADDRESS)


def _ssh(to: Destination) -> dict[str, Any]:
    """Return user and port, those that are stated."""
    return {key: value for key, value in (("user", to.user), ("port", to.port)) if value}


def _plain(name: str) -> str:
    """Return a valid name of a host or group: other characters become `-`."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name).strip("-._")
