"""Models of SSH and firewall settings."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer

from gpuprov.model.documents import Strict

ANYWHERE = ["0.0.0.0/0", "::/0"]
EXPORTERS = (9100, 9400, 9835)
ACCOUNT = r"^[a-z_][a-z0-9_-]{0,31}$"
PUBLIC_KEY = re.compile(r"(ssh|ecdsa|sk)-[A-Za-z0-9@.-]+ [A-Za-z0-9+/=]+( [^\n\x00-\x1f]*)?")


def network(text: str) -> str:
    """Return a network in its canonical form, `10.0.0.0/8` also for `10.0.0.7/8`; raise ValueError for
    another text, also for one with a zone, which firewall and sshd read differently.
    """
    if "%" in text:
        raise ValueError("a network without a zone")
    return str(ipaddress.ip_network(text, strict=False))


def _public_key(text: str) -> str:
    """Return a public key without surrounding space; raise ValueError if it is not one, on one line."""
    if not PUBLIC_KEY.fullmatch(text.strip()):
        raise ValueError("a public key on one line, as in a .pub file")
    return text.strip()


Network = Annotated[str, AfterValidator(network)]
Port = Annotated[int, Field(ge=1, le=65535)]
Account = Annotated[str, Field(pattern=ACCOUNT)]


class Ssh(Strict):
    """Key-only logins by a policy of `gpuprov/access/policies.json`."""

    policy: Literal["modern", "compatible"] = "modern"
    root: Literal["key", "no"] = Field(default="key", description="whether root may log in, with a key")
    port: Port | None = Field(
        default=None,
        description="port to listen on in addition to the fleet's `ssh.port`; if `ssh.port` is changed to it "
        "afterwards, the old port is closed",
    )
    allow_groups: list[Account] = Field(default=[], description="only members of these groups may log in")
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
        default=[], description="principals that a certificate must name; if empty, the name of its user"
    )
    banner: str | None = Field(default=None, max_length=4096)


class Opening(Strict):
    """Ports that are open to more than the fleet."""

    ports: list[Port] = Field(min_length=1)
    protocol: Literal["tcp", "udp"] = "tcp"
    sources: list[Network] = Field(
        default=ANYWHERE, description="networks that may reach them; all by default"
    )


class Firewall(Strict):
    """Deny by default; SSH, the fleet's own nodes and opened ports are allowed."""

    ssh_from: list[Network] = Field(
        default=ANYWHERE, min_length=1, description="networks from which SSH is allowed"
    )
    fleet: list[Network] | None = Field(
        default=None,
        description="networks of nodes that reach each other on all ports; by default the fleet's addresses",
    )
    monitor_from: list[Network] = Field(default=[], description="networks from which metrics are read")
    monitor_ports: list[Port] = Field(
        default_factory=lambda: list(EXPORTERS),
        min_length=1,
        description="ports of node_exporter, dcgm-exporter and nvidia_gpu_exporter",
    )
    open: list[Opening] = Field(default=[], description="ports that are open to more than the fleet")
    trusted_interfaces: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,15}\*?$")]] = Field(
        default=[], description="interfaces on which everything is allowed, such as a separate fabric: ib*"
    )
    published: Literal["fleet", "any"] = Field(
        default="fleet",
        description="who can reach containers of Docker and Podman: `fleet`, with the monitor and trusted "
        "interfaces, or `any`",
    )
    uplinks: list[Annotated[str, Field(pattern=r"^br-[A-Za-z0-9_.-]{1,12}$")]] = Field(
        default=[],
        description="interfaces that are named like Docker's networks, br-*, and lead elsewhere: br-ex",
    )

    @model_serializer(mode="wrap")
    def _without_what_is_not_stated(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the settings to write; `uplinks`, which the first locks did not have, only if stated."""
        written: dict[str, Any] = write(self)
        return {key: value for key, value in written.items() if key != "uplinks" or value}
