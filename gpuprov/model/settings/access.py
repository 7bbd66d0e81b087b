"""Models of SSH and firewall settings."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from gpuprov.model.documents import Strict

ANYWHERE = ["0.0.0.0/0", "::/0"]
EXPORTERS = (9100, 9400, 9835)
ACCOUNT = r"^[a-z_][a-z0-9_-]{0,31}$"
PUBLIC_KEY = re.compile(r"(ssh|ecdsa|sk)-[A-Za-z0-9@.-]+ [A-Za-z0-9+/=]+( [^\n\x00-\x1f]*)?")


def _network(text: str) -> str:
    return str(ipaddress.ip_network(text, strict=False))


def _public_key(text: str) -> str:
    if not PUBLIC_KEY.fullmatch(text.strip()):
        raise ValueError("a public key on one line, as in a .pub file")
    return text.strip()


Network = Annotated[str, AfterValidator(_network)]
Port = Annotated[int, Field(ge=1, le=65535)]
Account = Annotated[str, Field(pattern=ACCOUNT)]


class Ssh(Strict):
    """Key-only logins by a policy of `gpuprov/access/policies.json`."""

    policy: Literal["modern", "compatible"] = "modern"
    root: Literal["key", "no"] = Field(default="key", description="whether root may log in, with a key")
    port: Port | None = Field(
        default=None,
        description="a port to listen on beside that of the fleet's `ssh.port`: change that one second, "
        "and the old port is closed",
    )
    allow_groups: list[Account] = Field(default=[], description="members of these alone may log in")
    forwarding: Literal["no", "local", "yes"] = Field(
        default="no", description="TCP forwarding: `local` for ssh -L and for jump hosts"
    )
    max_auth_tries: int = Field(default=4, ge=2, le=20)
    exempt: list[Network] = Field(
        default=[], description="networks whose failed logins sshd does not punish (PerSourcePenalties)"
    )
    user_ca: list[Annotated[str, AfterValidator(_public_key)]] = Field(
        default=[], description="public keys of certificate authorities whose users may log in"
    )
    principals: list[Account] = Field(
        default=[], description="principals that a certificate must name; its user's name if none"
    )
    banner: str | None = Field(default=None, max_length=4096)


class Opening(Strict):
    """Ports that more than the fleet may reach."""

    ports: list[Port] = Field(min_length=1)
    protocol: Literal["tcp", "udp"] = "tcp"
    sources: list[Network] = Field(default=ANYWHERE, description="networks; everywhere if not stated")


class Firewall(Strict):
    """Deny by default; SSH, the fleet's own nodes and what is opened get in."""

    ssh_from: list[Network] = Field(
        default=ANYWHERE, min_length=1, description="networks that SSH comes from"
    )
    fleet: list[Network] | None = Field(
        default=None, description="networks of nodes that reach each other freely; the fleet's addresses"
    )
    monitor_from: list[Network] = Field(default=[], description="networks that metrics are fetched from")
    monitor_ports: list[Port] = Field(
        default_factory=lambda: list(EXPORTERS),
        description="of node_exporter, dcgm-exporter, nvidia_gpu_exporter",
    )
    open: list[Opening] = Field(default=[], description="ports that more than the fleet may reach")
    trusted_interfaces: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,15}\*?$")]] = Field(
        default=[], description="interfaces that let everything in: a fabric of its own, such as ib*"
    )
    published: Literal["fleet", "any"] = Field(
        default="fleet",
        description="who reaches ports that Docker publishes: the fleet and the monitor, or all",
    )
