"""Settings of SSH and firewall as the lock records them: with sshd's options and the rules that follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuprov.access.ruleset import ruleset
from gpuprov.access.sshd import policies, sshd_options
from gpuprov.model.lock import Connection, Setting
from gpuprov.model.settings.access import Firewall, Ssh


def with_access(
    settings: Mapping[str, Setting],
    *,
    system: str,
    connection: Connection,
    hosts: Mapping[str, str],
) -> dict[str, Setting]:
    """The same settings; `ssh` with its `options`, `firewall` with its `ruleset`.

    Args:
        system: id of the operating system.
        hosts: name → address of every node of the fleet.

    Raises:
        Refused: they would shut the fleet out, or its system cannot keep them.
    """
    stated = dict(settings)
    ports = [connection.port]
    if "ssh" in stated:
        ssh = Ssh.model_validate(stated["ssh"].value)
        options = sshd_options(ssh, system, connection)
        ports = [int(port) for port in options["Port"].split()]
        source = policies()["policies"][ssh.policy]["source"]
        stated["ssh"] = _extended(stated["ssh"], options=options, source=source)
    if "firewall" in stated:
        rules = ruleset(Firewall.model_validate(stated["firewall"].value), ports, hosts)
        stated["firewall"] = _extended(stated["firewall"], ruleset=rules)
    return stated


def _extended(setting: Setting, source: str = "", **more: Any) -> Setting:
    sources = "; ".join(filter(None, [setting.source, source]))
    return setting.model_copy(update={"value": {**setting.value, **more}, "source": sources})
