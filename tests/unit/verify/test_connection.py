"""The lock's connection as options of ssh."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from gpuprov.errors import NodeFailed
from gpuprov.model.connection import Connection
from gpuprov.ssh.route import route
from gpuprov.verify.connection import ssh_argv, sudo_answer
from gpuprov.verify.shell import Shell
from tests.unit.programs import write_program


def to(connection: Connection, *, password: bool = False) -> list[str]:
    """Return ssh's command line for a connection."""
    return ssh_argv(route("192.0.2.7", connection), password=password)


def effective(connection: Connection, configuration: str = "/dev/null") -> dict[str, str]:
    """Return the options that ssh itself derives from the command and a user's configuration."""
    argv = to(connection)
    asked = [argv[0], "-G", "-F", configuration, *argv[1 : argv.index("--")], "192.0.2.7"]
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
    assert re.search(
        r"UserKnownHostsFile=/keys/known .*-W '\[192\.0\.2\.7\]:2222' -- gate\.example$", seen["proxycommand"]
    )
    assert to(stated)[-2:] == ["192.0.2.7", "sudo -n -- sh"]


def test_strangers_are_refused_and_nothing_is_asked_of_a_person() -> None:
    seen = effective(Connection())
    assert seen["stricthostkeychecking"] in ("yes", "true")
    assert seen["batchmode"] == "yes"
    assert seen["kexalgorithms"].startswith("curve25519-sha256")
    assert to(Connection())[-2:] == ["192.0.2.7", "sh"]


def test_a_node_gets_nothing_that_the_user_forwards_elsewhere(tmp_path: Path) -> None:
    """Forward no agent, display or port, and trust no other host keys, also if `Host *` states them.

    Without known-hosts files in the configuration ssh would also write those that a node sends.
    """
    assert effective(Connection())["updatehostkeys"] in ("no", "false")
    (tmp_path / "config").write_text(
        "Host *\nForwardAgent yes\nForwardX11 yes\nForwardX11Trusted yes\nRemoteForward 9999 localhost:22\n"
        "PermitLocalCommand yes\nLocalCommand id\nTunnel yes\nVerifyHostKeyDNS yes\n"
        "GlobalKnownHostsFile /etc/others\nKnownHostsCommand /usr/bin/others\nUpdateHostKeys yes\n"
        "NoHostAuthenticationForLocalhost yes\nRemoteCommand tmux\nCheckHostIP yes\n"
    )
    for connection in (Connection(), Connection(jump="gate.example")):
        seen = effective(connection, str(tmp_path / "config"))
        assert seen["verifyhostkeydns"] in ("no", "false")
        assert seen["nohostauthenticationforlocalhost"] == "no"
        assert seen["checkhostip"] == "no", "ssh would write a key for another address of the node's name"
        assert seen.get("remotecommand", "none") == "none"
    assert "NoHostAuthenticationForLocalhost=no" in seen["proxycommand"]
    assert "VerifyHostKeyDNS=no" in seen["proxycommand"]
    assert "CheckHostIP=no" in seen["proxycommand"]
    seen = effective(Connection(known_hosts="/keys/known"), str(tmp_path / "config"))
    closed = ("forwardagent", "forwardx11", "permitlocalcommand", "tunnel", "verifyhostkeydns")
    assert {name: seen[name] for name in closed} == dict.fromkeys(closed[:-1], "no") | {
        "tunnel": "false",
        "verifyhostkeydns": "false",
    }
    assert seen["updatehostkeys"] in ("no", "false")
    assert (seen["clearallforwardings"], seen["globalknownhostsfile"]) == ("yes", "/dev/null")
    assert seen.get("knownhostscommand", "none") == "none"


@pytest.mark.parametrize("path", ["/a b/key", "/o'b/key", "#key", "/é/key"])
def test_ssh_reads_a_file_as_one_path(path: str) -> None:
    seen = effective(Connection(identity_file=path, known_hosts=path, jump="gate.example"))
    assert (seen["identityfile"], seen["userknownhostsfile"]) == (path, path)


SUDO = """\
[ "$1 $2 $3 $4" = "-S -p  --" ] || exit 9
if [ -n "$ASKS" ]; then
    read -r password
    [ "$password" = "correct horse" ] || { echo 'sudo: 1 incorrect password attempt' >&2; exit 1; }
fi
shift 4
exec "$@"
"""


@pytest.fixture
def through_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command for a node's login shell, with a sudo that prompts if ASKS is set."""
    write_program(tmp_path / "sudo", SUDO)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return ["/bin/sh", "-c", to(Connection(user="admin"), password=True)[-1]]


@pytest.mark.parametrize("asks", ["", "yes"])
def test_password_goes_to_sudo_or_to_nobody(
    through_sudo: list[str], monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    monkeypatch.setenv("ASKS", asks)
    shell = Shell(through_sudo, timeout_s=10, greeting=sudo_answer("correct horse"))
    shell.open()
    assert shell.ask("echo mine") == (0, b"mine\n", b"")
    shell.close()


def test_wrong_password_is_said(through_sudo: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the error for a wrong password of sudo."""
    monkeypatch.setenv("ASKS", "yes")
    with pytest.raises(NodeFailed, match="sudo: 1 incorrect password attempt"):
        Shell(through_sudo, timeout_s=10, greeting=sudo_answer("wrong")).open()
