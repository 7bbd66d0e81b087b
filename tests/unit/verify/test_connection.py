"""The lock's connection becomes ssh's options."""

from __future__ import annotations

import subprocess

from gpuprov.lock import Connection
from gpuprov.verify.connection import ssh_argv


def effective(connection: Connection) -> dict[str, str]:
    """What ssh itself makes of the command."""
    argv = ssh_argv("192.0.2.7", connection)
    asked = [argv[0], "-G", "-F", "/dev/null", *argv[1 : argv.index("--")], "192.0.2.7"]
    lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    return dict(line.split(" ", 1) for line in lines if " " in line)


def test_everything_stated_reaches_ssh() -> None:
    stated = Connection(
        user="admin", port=2222, identity_file="/keys/fleet", known_hosts="/keys/known", jump="gate.example"
    )
    seen = effective(stated)
    assert seen["user"] == "admin"
    assert seen["port"] == "2222"
    assert seen["identityfile"] == "/keys/fleet"
    assert seen["userknownhostsfile"] == "/keys/known"
    assert seen["proxyjump"] == "gate.example"
    assert ssh_argv("192.0.2.7", stated)[-4:] == ["sudo", "-n", "--", "sh"]


def test_strangers_are_refused_and_nothing_is_asked_of_a_person() -> None:
    seen = effective(Connection())
    assert seen["stricthostkeychecking"] in ("yes", "true")
    assert seen["batchmode"] == "yes"
    assert seen["kexalgorithms"].startswith("curve25519-sha256")
    assert ssh_argv("192.0.2.7", Connection())[-2:] == ["192.0.2.7", "sh"]
