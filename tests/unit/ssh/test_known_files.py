"""All known-hosts files of a route are one table, and revocations count from any place that ssh reads."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import paramiko
import pytest

from gpuprov.bootstrap.contact import Login
from gpuprov.bootstrap.hostkeys import host_keys
from gpuprov.bootstrap.run import Goal, bootstrap
from gpuprov.bootstrap.unknown_key import unknown_key
from gpuprov.errors import GpuprovError, Unreachable
from gpuprov.model.connection import Connection
from gpuprov.ssh.known_hosts import known_files
from gpuprov.ssh.route import forget_routes
from gpuprov.ssh.transport import ConnectionLimits, Target, open_session
from tests.unit.ssh.conftest import Configure

QUICK = ConnectionLimits(connect_s=5, command_s=5)
OTHER = paramiko.ECDSAKey.generate()


def words(key: paramiko.PKey) -> str:
    """Return a key as `TYPE BASE64`."""
    return f"{key.get_name()} {key.get_base64()}"


class Impostor(paramiko.ServerInterface):
    """A server that accepts every login, and records passwords and commands."""

    def __init__(self, heard: list[str]) -> None:
        self.heard = heard

    def get_allowed_auths(self, username: str) -> str:
        return "publickey,password"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_auth_password(self, username: str, password: str) -> int:
        """Accept any password, and record it."""
        self.heard.append(password)
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        """Record a command and answer it with success."""
        self.heard.append(command.decode())

        def end() -> None:
            """Send exit status 0 and close the channel."""
            with suppress(OSError, EOFError):
                channel.send_exit_status(0)
                channel.close()

        threading.Timer(0.1, end).start()
        return True


class Site:
    """The server, and the files of an operator whose fleet states no known-hosts file."""

    def __init__(self, folder: Path, port: int, configure: Configure) -> None:
        self.folder, self.port, self._configure = folder, port, configure
        self.key, self.heard = paramiko.ECDSAKey.generate(), []  # type: tuple[paramiko.PKey, list[str]]
        self.user, self.system, self.revoked = (folder / name for name in ("user", "system", "revoked"))
        paramiko.ECDSAKey.generate().write_private_key_file(str(folder / "id"))
        self.target = Target("gpu01", "127.0.0.1", Connection(user="root", port=port))
        self.write()

    @property
    def line(self) -> str:
        """The server's line in a known-hosts file."""
        return f"[127.0.0.1]:{self.port} {words(self.key)}\n"

    @property
    def other(self) -> str:
        """A line for the server with another key."""
        return f"[127.0.0.1]:{self.port} {words(OTHER)}\n"

    @property
    def revocation(self) -> str:
        """A line that revokes the server's key."""
        return f"@revoked * {words(self.key)}\n"

    def write(self, user: str = "", system: str = "", revoked: str | bytes | None = None) -> None:
        """Write the files, and ssh's configuration that names them."""
        self.user.write_text(user)
        self.system.write_text(system)
        lines = [f"UserKnownHostsFile {self.user}", f"GlobalKnownHostsFile {self.system}"]
        lines += [f"IdentityFile {self.folder}/id", "IdentitiesOnly yes"]
        if revoked is not None:
            self.revoked.write_bytes(revoked.encode() if isinstance(revoked, str) else revoked)
            lines.append(f"RevokedHostKeys {self.revoked}")
        self.config = self._configure("Host *\n" + "".join(f"  {line}\n" for line in lines))
        forget_routes()

    def ssh(self) -> bool:
        """Return whether ssh logs in with the same files."""
        place = ["-p", str(self.port), "root@127.0.0.1", "true"]
        options = ["-F", str(self.config), "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]
        return subprocess.run(["ssh", *options, *place], capture_output=True, check=False).returncode == 0

    def logs_in(self) -> bool:
        """Return whether gpuprov runs a command on the server."""
        try:
            with open_session(self.target, QUICK) as session:
                return session.run("true").code == 0
        except GpuprovError as error:
            self.said = str(error)
            return False

    def bootstrap(self) -> str:
        """Return the failure of `bootstrap --accept-new` with a password."""
        login = Login("root", self.port, None, "S3cret", None, lambda: None)
        goal = Goal({"gpu01": ("ssh-ed25519 AAAA x",)})
        named = [self.target.name]
        [node] = bootstrap([self.target], goal, login, host_keys, confirm=lambda _: True, named=named)
        return str(node.failure)


@pytest.fixture
def site(tmp_path: Path, configure: Configure) -> Iterator[Site]:
    """Provide a server that accepts every login and records passwords and commands."""
    listener = socket.create_server(("127.0.0.1", 0))
    found = Site(tmp_path, listener.getsockname()[1], configure)

    def serve() -> None:
        """Serve an impostor's SSH until the listener is closed."""
        while True:
            try:
                opened, _ = listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(opened)
            transport.add_server_key(found.key)
            with suppress(OSError, EOFError, paramiko.SSHException):
                transport.start_server(event=threading.Event(), server=Impostor(found.heard))

    threading.Thread(target=serve, daemon=True).start()
    yield found
    listener.close()


def krl(site: Site) -> bytes:
    """Return a list in OpenSSH's binary format with the server's key."""
    public, made = site.folder / "public", site.folder / "krl"
    public.write_text(words(site.key) + "\n")
    subprocess.run(["ssh-keygen", "-q", "-k", "-f", made, public], check=True)
    return made.read_bytes()


CASES: dict[str, tuple[Callable[[Site], dict[str, str | bytes]], bool]] = {
    "in the user's file": (lambda site: {"user": site.line}, True),
    "in the system's file": (lambda site: {"system": site.line}, True),
    "another host's files": (lambda site: {"user": site.other.replace("127.0.0.1", "other")}, False),
    "revoked in the system's file": (lambda site: {"user": site.line, "system": site.revocation}, False),
    "revoked in the user's file": (lambda site: {"user": site.revocation, "system": site.line}, False),
    "another in the system's file": (lambda site: {"system": site.other}, False),
    "another is revoked": (lambda site: {"user": site.line, "revoked": words(OTHER)}, True),
    "revoked in a text": (
        lambda site: {"user": site.line, "revoked": f"# stolen\n\n{words(site.key)} x\n"},
        False,
    ),
    "revoked in a binary list": (lambda site: {"user": site.line, "revoked": krl(site)}, False),
    "a broken list": (lambda site: {"user": site.line, "revoked": "ssh-ed25519 %%%\n"}, False),
    "a cut-off list": (lambda site: {"user": site.line, "revoked": krl(site)[:40]}, False),
}


@pytest.mark.parametrize("case", CASES)
def test_a_key_is_known_as_it_is_for_ssh(site: Site, case: str) -> None:
    files, known = CASES[case]
    site.write(**files(site))  # type: ignore[arg-type]
    assert (site.ssh(), site.logs_in()) == (known, known)


def test_a_list_of_revoked_keys_that_is_missing_refuses_all_hosts(site: Site) -> None:
    site.write(user=site.line, revoked="")
    assert site.ssh()
    assert site.logs_in()
    site.revoked.unlink()
    assert not site.ssh()
    assert not site.logs_in()
    assert f"RevokedHostKeys {site.revoked} cannot be used: No such file" in site.said


def test_a_binary_list_without_the_key_refuses_nothing(site: Site) -> None:
    made, site.key = krl(site), paramiko.ECDSAKey.generate()
    site.write(user=site.line, revoked=made)
    assert (site.ssh(), site.logs_in()) == (True, True)


@pytest.mark.parametrize("case", ["system", "revoked"])
def test_up_reads_no_server_whose_key_is_revoked(site: Site, case: str) -> None:
    site.write(**{case: site.revocation if case == "system" else words(site.key)})
    with pytest.raises(Unreachable, match=rf"is revoked in {site.folder / case}:1"):
        unknown_key(site.target, None)
    assert site.heard == []


@pytest.mark.parametrize("exists", [True, False])
def test_what_the_fleets_file_says_of_jump_hosts_counts_while_a_server_is_read(
    site: Site, tmp_path: Path, exists: bool
) -> None:
    stated, jump = tmp_path / "fleet_hosts", paramiko.ECDSAKey.generate()
    if exists:
        stated.write_text(f"@revoked * {words(OTHER)}\njump {words(jump)}")
    there = Connection(user="root", port=site.port, known_hosts=str(stated))
    found = unknown_key(Target("gpu01", "127.0.0.1", there), None)
    assert found is not None
    with found.meanwhile() as path:
        files = known_files([str(path)])
        assert files.keys(f"[127.0.0.1]:{site.port}") == {site.key.get_name(): site.key}
        assert files.keys("jump") == ({jump.get_name(): jump} if exists else {})
        assert bool(files.revocation(OTHER, "jump")) is exists
    assert (stated.read_text().count("\n") if exists else stated.exists()) == exists


@pytest.mark.parametrize("case", ["revoked", "another"])
def test_bootstrap_sends_no_password_to_a_key_that_the_second_file_refuses(site: Site, case: str) -> None:
    """Refuse the key before the question, also with `--accept-new`, and pin nothing."""
    site.write(system=site.revocation if case == "revoked" else site.other)
    expected = f"is revoked in {site.system}:1" if case == "revoked" else f"not the one in {site.system}"
    assert expected in site.bootstrap()
    assert (site.heard, site.user.read_text()) == ([], "")


def test_what_is_revoked_says_where(site: Site) -> None:
    """Check that a revoked host key is refused, with file and line."""
    site.write(user=site.line, system=site.revocation)
    assert not site.logs_in()
    assert f"is revoked in {site.system}:1" in site.said
