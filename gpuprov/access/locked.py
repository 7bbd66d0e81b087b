"""Settings of SSH and firewall as the lock records them, with the resulting sshd options and rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuprov.access.ruleset import ruleset
from gpuprov.access.sshd import SSH_PORT, policies, ports_of, sshd_options
from gpuprov.errors import Refused
from gpuprov.model.connection import Connection
from gpuprov.model.lock import Setting
from gpuprov.model.settings.access import Firewall, Ssh

UNPRIVILEGED = 1024
"""First port on which any user may listen: Linux' default of net.ipv4.ip_unprivileged_port_start, ip(7)."""


def with_access(
    settings: Mapping[str, Setting],
    *,
    system: str,
    connection: Connection,
    hosts: Mapping[str, str],
    own: Mapping[str, Connection] | None = None,
) -> dict[str, Setting]:
    """Return the settings, with `options` added to `ssh` and `ruleset` added to `firewall`.

    Args:
        system: id of the operating system.
        connection: connection to the group's nodes.
        hosts: name → address of every node of the fleet.
        own: node of the group → its own connection settings.

    Raises:
        Refused: they would lock the fleet out, or the operating system does not support them.
    """
    stated = dict(settings)
    own = own or {}
    ports = [connection.port or SSH_PORT, *(each.port for each in own.values() if each.port)]
    if "ssh" in stated:
        ssh = Ssh.model_validate(stated["ssh"].value)
        options = sshd_options(ssh, system, connection)
        ports = ports_of(options)
        _refuse_logins_that_end(ssh, ports, own)
        source = policies()["policies"][ssh.policy]["source"]
        stated["ssh"] = _extended(stated["ssh"], options=options, source=source)
    if "firewall" in stated:
        rules = ruleset(Firewall.model_validate(stated["firewall"].value), ports, hosts)
        stated["firewall"] = _extended(stated["firewall"], ruleset=rules)
    return stated


def unprotected_port(settings: Mapping[str, Setting]) -> str:
    """Return a warning if sshd has no port below `UNPRIVILEGED`, else an empty text.

    Args:
        settings: as `with_access` returns them.
    """
    ports = ports_of(settings["ssh"].value["options"]) if "ssh" in settings else []
    if not ports or min(ports) < UNPRIVILEGED:
        return ""
    listed = " and ".join(map(str, ports))
    return (
        f"sshd listens on {listed} only, and any user of a node can take such a port while sshd restarts;"
        f" logins then fail: state a port below {UNPRIVILEGED} in settings.ssh.port or ssh.port"
    )


def _refuse_logins_that_end(ssh: Ssh, ports: list[int], own: Mapping[str, Connection]) -> None:
    """Refuse settings that would close a node's own port or disable its own user.

    Raises:
        Refused: a node has such connection settings.
    """
    for host, stated in own.items():
        if stated.port is not None and stated.port not in ports:
            raise Refused(
                f"{host} is reached on port {stated.port}, and settings.ssh has sshd listen on "
                + ", ".join(map(str, ports)),
                do="state that port in settings.ssh.port or in the group's ssh; leave settings.ssh out for a"
                " group behind a router that forwards other ports",
            )
        if stated.user == "root" and ssh.root == "no":
            raise Refused(
                f"settings.ssh.root is 'no', and {host} is reached as root: that login would stop working",
                do="`gpuprov bootstrap` makes another admin; name that one in ssh.user",
            )


def _extended(setting: Setting, source: str = "", **more: Any) -> Setting:
    """Return a setting with more values, and with an additional source after its own."""
    sources = "; ".join(filter(None, [setting.source, source]))
    return setting.model_copy(update={"value": {**setting.value, **more}, "source": sources})
