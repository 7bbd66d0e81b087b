"""The site's file of BMCs: for sets of nodes the address, the user, and where the password is."""

from __future__ import annotations

import re
import shlex
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from gpuprov.errors import InvalidInput
from gpuprov.model.documents import Strict, read_document, read_text
from gpuprov.model.nodeset import expand

NODE = "{node}"
_URL = re.compile(r"https://(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")


class Bmc(Strict):
    """Address and credentials of a node's BMC for Redfish.

    Attributes:
        address: `https://HOST[:PORT]`; `{node}` in it is the node's name.
        user: name of the account.
        password_file: file with its password, which only its owner may read; relative to the file of BMCs.
        ca_file: certificates that sign the BMC's, in place of the system's; relative to the file of BMCs.
        fingerprint: SHA-256 of the BMC's certificate, for one without a signature.
        system: id of the node's computer system, if the BMC has several.
    """

    address: str
    user: str = Field(min_length=1)
    password_file: Path
    ca_file: Path | None = None
    fingerprint: Annotated[str, Field(pattern=r"^(?:[0-9A-Fa-f]{2}:?){31}[0-9A-Fa-f]{2}$")] | None = None
    system: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")] | None = None

    @field_validator("address")
    @classmethod
    def _encrypted(cls, stated: str) -> str:
        """Return the address; raise ValueError if it is not `https://HOST[:PORT]`."""
        place = stated.replace(NODE, "node")
        with suppress(ValueError):  # of urlsplit: an invalid port or IPv6 address
            if _URL.fullmatch(place) and urlsplit(place).port != 0:
                return stated
        raise ValueError("an address such as https://{node}-bmc.example.com")

    @model_validator(mode="after")
    def _one_way_to_trust(self) -> Bmc:
        """Return the entry; raise ValueError if it has two ways to verify a certificate."""
        if self.ca_file and self.fingerprint:
            raise ValueError("either ca_file or fingerprint")
        return self

    def password(self) -> str:
        """Return the file's content without newlines at its ends.

        Raises:
            InvalidInput: the file cannot be read, is empty, or others may read it.
        """
        refuse_shared(self.password_file)
        text = read_text(self.password_file).strip("\r\n")
        if not text:
            raise InvalidInput(f"{self.password_file} is empty", expected="the password of the BMC")
        return text


class BmcFile(Strict):
    """The file of BMCs: set of nodes → its entry."""

    bmcs: dict[str, Bmc]


def read_bmcs(path: Path, names: Iterable[str]) -> dict[str, Bmc]:
    """Return node → its BMC, for those of the nodes that the file has.

    Raises:
        InvalidInput: the file cannot be read or has another form, or two entries have the same node.
    """
    stated = read_document(path, BmcFile, missing="name the file of BMCs with --bmc FILE").bmcs
    wanted, seen, found = set(names), set[str](), dict[str, Bmc]()
    for text, entry in stated.items():
        for node in _nodes(path, text):
            if node in seen:
                raise InvalidInput(f"{path}: {node} is in two entries", do="state it once")
            seen.add(node)
            if node in wanted:
                found[node] = _of_node(entry, node, path.absolute().parent)
    return found


def _nodes(path: Path, text: str) -> list[str]:
    """Return the nodes of a set; raise InvalidInput if it is not one."""
    try:
        return list(expand(text))
    except ValueError as error:
        raise InvalidInput(f"{path}: not a set of nodes: {text!r}", expected=str(error)) from None


def _of_node(entry: Bmc, node: str, folder: Path) -> Bmc:
    """Return the entry of one node, with its name in the address and absolute paths."""
    files = {"password_file": folder / entry.password_file}
    if entry.ca_file:
        files["ca_file"] = folder / entry.ca_file
    return entry.model_copy(update={"address": entry.address.replace(NODE, node), **files})


def refuse_shared(path: Path) -> None:
    """Refuse a file with a secret that others than its owner may read.

    Raises:
        InvalidInput: it cannot be read, or others may read it.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        do = f"chmod 600 {shlex.quote(str(path))}"
        raise InvalidInput(f"{path} has mode {stat.S_IMODE(mode):04o}", expected="0600", do=do)
