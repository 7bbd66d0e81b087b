"""SSH fan-out to faulty peers on loopback: each is reported in one line, none delays the others."""

from __future__ import annotations

import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import paramiko
import pytest
from paramiko.common import MSG_CHANNEL_EXTENDED_DATA

from gpuprov.bootstrap.contact import Login, reach
from gpuprov.errors import GpuprovError, InvalidInput, NodeFailed, Unreachable
from gpuprov.model.connection import Connection
from gpuprov.model.fleet import parse_fleet
from gpuprov.model.lock import Lock, read_lock, write_lock
from gpuprov.ssh import packets
from gpuprov.ssh import transport as ssh_transport
from gpuprov.ssh.dispatch import Dispatch
from gpuprov.ssh.packets import GROUP_EXCHANGE, LimitedTransport
from gpuprov.ssh.transport import ConnectionLimits, Output, Session, Target, fan_out, targets
from gpuprov.ssh.wording import UNKNOWN_NAME
from tests import RECORDED_LOCK

QUICK = ConnectionLimits(connect_s=4.0, command_s=2.0, answer_bytes=100_000)
HUNG_UP = (OSError, EOFError, paramiko.SSHException)


class Door(paramiko.ServerInterface):
    """Policy of an SSH server: one key is accepted, and every command gets `answer`."""

    def __init__(self, allowed: paramiko.PKey, answer: bytes | None, over: threading.Event) -> None:
        self.allowed, self.answer, self.over = allowed, answer, over

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        """Accept only the allowed key."""
        return paramiko.AUTH_SUCCESSFUL if key == self.allowed else paramiko.AUTH_FAILED

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        """Accept any command, and answer it in another thread."""
        threading.Thread(target=self._serve, args=(channel,), daemon=True).start()
        return True

    def _serve(self, channel: paramiko.Channel) -> None:
        """Send the answer and exit code 0; nothing without an answer."""
        if self.answer is None:
            return
        time.sleep(0.05)  # after the reply to the request for the command
        with suppress(*HUNG_UP):  # the client may hang up before the end
            channel.sendall(self.answer)
            channel.send_exit_status(0)
            channel.close()


class Peers:
    """Servers on loopback, and their keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host_key = paramiko.ECDSAKey.generate()
        self.user_key = paramiko.ECDSAKey.generate()
        self.user_key.write_private_key_file(str(folder / "id"))
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.touch()
        self.sockets: list[socket.socket] = []
        self.transports: list[paramiko.Transport] = []
        self.over = threading.Event()

    def listen(self) -> socket.socket:
        """Return a new listening socket, which is closed at the end."""
        server = socket.create_server(("127.0.0.1", 0))
        self.sockets.append(server)
        return server

    def ssh(
        self,
        answer: bytes | None = b"hello\n",
        *,
        known: paramiko.PKey | None = None,
        door: type[Door] = Door,
        window: int = 1 << 21,
    ) -> int:
        """Start an SSH server with one answer or none, and return its port."""
        server = self.listen()
        port = int(server.getsockname()[1])
        key = known or self.host_key
        with self.known_hosts.open("a") as lines:
            lines.write(f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n")

        def serve() -> None:
            """Serve one SSH connection."""
            with suppress(*HUNG_UP):
                client, _ = server.accept()
                transport = paramiko.Transport(client, default_window_size=window)
                self.transports.append(transport)
                transport.add_server_key(self.host_key)
                transport.start_server(server=door(self.user_key, answer, self.over))

        threading.Thread(target=serve, daemon=True).start()
        return port

    def target(self, name: str, port: int, identity: str | None = None) -> Target:
        """Return a target at a port of this machine, with the test's key and known hosts."""
        spec = Connection(
            port=port,
            identity_file=identity or str(self.folder / "id"),
            known_hosts=str(self.known_hosts),
        )
        return Target(name, "127.0.0.1", spec)

    def close(self) -> None:
        """Close all connections and sockets."""
        self.over.set()
        for transport in self.transports:
            transport.close()
        for each in self.sockets:
            each.close()


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    found = Peers(tmp_path)
    yield found
    found.close()


class Sluggard(Door):
    """Server that reads its input slowly, with short pauses."""

    def _serve(self, channel: paramiko.Channel) -> None:
        """Read a piece of the input twice a second."""
        with suppress(*HUNG_UP):
            while channel.recv(4096):
                time.sleep(0.5)


class WithoutSession(Door):
    """Server whose PAM opens no session: sshd prints the message of the day and ends with 254."""

    def _serve(self, channel: paramiko.Channel) -> None:
        """Answer as a node on which PAM opens no session."""
        time.sleep(0.05)  # after the reply to the request for the command
        with suppress(*HUNG_UP):
            channel.sendall(b"permitted by applicable law.\n")
            channel.send_exit_status(254)
            channel.close()


class Mute(Door):
    """Server that does not reply to the request for a command."""

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        """Wait instead of answering a request for a command."""
        self.over.wait(20)
        return False


class Deaf(Door):
    """Server that announces a window for the whole input, and then reads nothing more."""

    def _serve(self, channel: paramiko.Channel) -> None:
        """Read no more packets of the connection."""

        def nothing() -> None:
            """Wait for the end of the test, then end the connection."""
            self.over.wait(20)
            raise EOFError

        channel.transport.packetizer.read_message = nothing  # type: ignore[method-assign, assignment]


def visit(*nodes: Target, stdin: bytes = b"") -> dict[str, Output | GpuprovError]:
    """Run `true` on nodes; return node → output or error."""

    def ask(session: Session) -> Output:
        return session.run("true", stdin)

    return {node.name: answer for node, answer in fan_out(list(nodes), ask, limits=QUICK)}


def test_an_answer_comes_back(peers: Peers) -> None:
    """Check that the output and exit code of a command are returned."""
    answer = visit(peers.target("a", peers.ssh(b"hello\n")))["a"]
    assert isinstance(answer, Output)
    assert (answer.stdout, answer.code) == (b"hello\n", 0)


def test_who_takes_no_more_answers_waits_for_none(peers: Peers) -> None:
    """Stop waiting when the caller stops, as on Ctrl-C, even if a command still runs on a silent node."""
    patient = ConnectionLimits(connect_s=4.0, command_s=30.0, answer_bytes=100_000)
    nodes = [peers.target("a", peers.ssh()), peers.target("b", peers.ssh(None))]
    answers = fan_out(nodes, lambda session: session.run("true"), limits=patient)
    first, _ = next(answers)
    assert first.name == "a"
    begun = time.monotonic()
    answers.close()  # type: ignore[attr-defined]
    assert time.monotonic() - begun < 10


def test_answers_wait_for_a_slow_caller_in_the_places_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes decide how large their answers are: those that are not taken are no more than nodes at a time."""
    at_once = 3
    monkeypatch.setattr(
        ssh_transport, "open_session", lambda node, limits: nullcontext(Session(node, limits))
    )
    nodes = [Target(f"n{number}", "127.0.0.1", Connection()) for number in range(20)]
    begun: list[str] = []

    def work(session: Session) -> str:
        begun.append(session.target.name)
        return session.target.name

    answers = fan_out(nodes, work, dispatch=Dispatch(forks=at_once))
    for taken, (node, answer) in enumerate(answers, start=1):
        assert answer == node.name
        time.sleep(0.02)  # others finish meanwhile
        assert len(begun) <= taken + at_once
    assert sorted(begun) == sorted(node.name for node in nodes)


def test_a_closed_port_is_unreachable(peers: Peers) -> None:
    server = peers.listen()
    port = server.getsockname()[1]
    server.close()
    answer = visit(peers.target("a", port))["a"]
    assert isinstance(answer, Unreachable)
    assert f"no SSH on port {port}: connection refused" in str(answer)


def test_a_changed_host_key_is_said(peers: Peers) -> None:
    """Check the error for a host key that has changed, with the command that removes the old one."""
    port = peers.ssh(known=paramiko.ECDSAKey.generate())
    answer = visit(peers.target("a", port))["a"]
    assert isinstance(answer, Unreachable)
    assert "host key of 127.0.0.1 has changed" in str(answer)
    assert "ssh-keygen -R" in str(answer)


def test_an_unknown_host_key_is_refused(peers: Peers) -> None:
    port = peers.ssh()
    peers.known_hosts.write_text("")
    assert "host key of 127.0.0.1 is not known" in str(visit(peers.target("a", port))["a"])


def test_a_revoked_host_key_is_refused_though_it_is_known(peers: Peers) -> None:
    node = peers.target("a", peers.ssh())
    own = f"{peers.host_key.get_name()} {peers.host_key.get_base64()}"
    with peers.known_hosts.open("a") as lines:
        lines.write(f"@revoked * {own}\n")
    answer = visit(node)["a"]
    assert isinstance(answer, Unreachable)
    assert f"host key of 127.0.0.1 is revoked in {peers.known_hosts}:2" in str(answer)


def test_a_revoked_host_key_beside_another_that_is_good(peers: Peers) -> None:
    port, own = peers.ssh(), f"{peers.host_key.get_name()} {peers.host_key.get_base64()}"
    good = paramiko.ECDSAKey.generate(bits=384)
    lines = [f"@revoked * {own}", f"127.0.0.1 {own}", f"127.0.0.1 {good.get_name()} {good.get_base64()}"]
    peers.known_hosts.write_text("\n".join(lines) + "\n")
    assert "is revoked in" in str(visit(peers.target("a", port))["a"])


def test_broken_lines_do_not_shut_out_those_that_are_known(peers: Peers) -> None:
    port = peers.ssh()
    text = peers.known_hosts.read_text()
    peers.known_hosts.write_text(f"x ssh-ed25519 %%%\n{text}y ssh-ed25519 AAAA\n")
    assert isinstance(visit(peers.target("a", port))["a"], Output)


def test_an_unknown_host_hears_of_the_broken_lines(peers: Peers) -> None:
    port = peers.ssh()
    peers.known_hosts.write_text("127.0.0.1 ssh-ed25519 %%%\n")
    said = str(visit(peers.target("a", port))["a"])
    assert f"{peers.known_hosts}:1 is not base64" in said


def test_a_wrong_key_is_named(peers: Peers, tmp_path: Path) -> None:
    paramiko.ECDSAKey.generate().write_private_key_file(str(tmp_path / "other"))
    answer = visit(peers.target("a", peers.ssh(), str(tmp_path / "other")))["a"]
    assert isinstance(answer, Unreachable)
    assert f"root@127.0.0.1 refused the key {tmp_path}/other" in str(answer)


def test_a_missing_key_file_is_a_mistake_of_ours(peers: Peers) -> None:
    answer = visit(peers.target("a", peers.ssh(), "/nonexistent/key"))["a"]
    assert isinstance(answer, InvalidInput)
    assert "/nonexistent/key does not exist" in str(answer)


def test_silence_after_the_handshake_ends_at_the_time_out(peers: Peers) -> None:
    answer = visit(peers.target("a", peers.ssh(answer=None)))["a"]
    assert isinstance(answer, NodeFailed)
    assert "no answer within 2 s" in str(answer)


@pytest.mark.parametrize(
    ("door", "window"), [(Sluggard, 1 << 15), (Mute, 1 << 21), (Deaf, 1 << 30)], ids=["slow", "mute", "deaf"]
)
def test_a_peer_that_takes_its_time_has_no_more_than_a_commands(
    peers: Peers, door: type[Door], window: int
) -> None:
    """Limit the total time: each single wait is short, or it is one of Paramiko's, which have no limit."""
    node = peers.target("a", peers.ssh(door=door, window=window))
    begun = time.monotonic()
    answer = visit(node, stdin=bytes(32 << 20))["a"]
    assert time.monotonic() - begun < 3 * QUICK.connect_s
    assert isinstance(answer, NodeFailed)
    assert "no answer within 2 s" in str(answer)


def test_a_flood_is_cut_off(peers: Peers) -> None:
    answer = visit(peers.target("a", peers.ssh(b"x" * 500_000)))["a"]
    assert isinstance(answer, NodeFailed)
    assert "answered more than" in str(answer)


def visited(node: Target) -> Output | GpuprovError:
    """Run `true` on the node `a`; return its output or error."""
    return visit(node)["a"]


def contacted(node: Target) -> GpuprovError:
    """Return the error of a first contact, where no host key is known yet."""
    with pytest.raises(Unreachable) as refused:
        reach(node.name, node.address, node.connection, Login())
    return refused.value


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"SSH-2.0-x\r\n" + (0xFFFFFFF4).to_bytes(4, "big"), "it sent a packet of 4294967280 bytes"),
        (b"a line\n" * 20 + b"a" * 100_000, "no SSH version in the first 64 KiB"),
    ],
    ids=["4 GiB", "banner"],
)
@pytest.mark.parametrize("first", [False, True], ids=["login", "first contact"])
def test_a_stranger_has_no_memory_of_ours(peers: Peers, sent: bytes, said: str, first: bool) -> None:
    """Limit what a server can send before its host key is checked."""
    server = peers.listen()

    def serve() -> None:
        """Send one client the bytes, then 200 MiB."""
        with suppress(*HUNG_UP), server.accept()[0] as client:
            client.sendall(sent)
            for _ in range(200):
                client.sendall(bytes(1 << 20))

    threading.Thread(target=serve, daemon=True).start()
    tracemalloc.start()
    try:
        answer = (contacted if first else visited)(peers.target("a", server.getsockname()[1]))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(answer, Unreachable)
    assert said in str(answer)
    assert most < 8 << 20


class Many(list[tuple[str, bool]]):
    """Prompts whose stated number is false."""

    def __len__(self) -> int:
        return 3_000_000


class Curious(Door):
    """Server that requests millions of answers for a login."""

    def get_allowed_auths(self, username: str) -> str:
        return "keyboard-interactive"

    def check_auth_interactive(self, username: str, submethods: str) -> paramiko.InteractiveQuery:
        """Ask for a very long list of answers."""
        query = paramiko.InteractiveQuery("name", "instructions")
        query.prompts = Many()
        return query


def test_a_login_without_a_session_names_pam(peers: Peers) -> None:
    answer = visit(peers.target("a", peers.ssh(door=WithoutSession)))["a"]
    assert isinstance(answer, NodeFailed)
    assert "the login is accepted, but PAM opens no session" in str(answer)


def test_a_login_asks_for_a_few_answers(peers: Peers) -> None:
    transport = LimitedTransport(socket.create_connection(("127.0.0.1", peers.ssh(door=Curious))))
    tracemalloc.start()
    try:
        transport.start_client(timeout=10)
        with pytest.raises(paramiko.SSHException, match="more than 16 answers"):
            transport.auth_interactive("root", lambda title, instructions, prompts: [])
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
        transport.close()


@pytest.mark.parametrize("bits", [2048, 8192])
def test_a_server_chooses_no_large_group(peers: Peers, monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    """Refuse a group of 8,192 bits, which takes seconds while nothing else runs; others are used."""
    groups = SimpleNamespace(get_modulus=lambda *_: (2, (1 << bits) - 1))
    monkeypatch.setattr(paramiko.Transport, "_modulus_pack", groups)
    transport = LimitedTransport(socket.create_connection(("127.0.0.1", peers.ssh())))
    transport.get_security_options().kex = (GROUP_EXCHANGE,)
    large = pytest.raises(paramiko.SSHException, match="a group of 8192 bits for the key exchange")
    with closing(transport), large if bits == 8192 else nullcontext():
        transport.start_client(timeout=10)
        assert transport.get_remote_server_key()


class Flood(Door):
    """Server that sends standard error without regard to the window."""

    def _serve(self, channel: paramiko.Channel) -> None:
        """Send 40 MiB of standard error without regard to the window."""
        time.sleep(0.05)
        with suppress(*HUNG_UP):
            for _ in range(40 << 5):
                message = paramiko.Message()
                message.add_byte(bytes([MSG_CHANNEL_EXTENDED_DATA]))
                message.add_int(channel.remote_chanid)
                message.add_int(1)
                message.add_string(bytes(32 << 10))
                channel.transport._send_user_message(message)  # type: ignore[union-attr]


def test_a_peer_keeps_to_its_window(peers: Peers) -> None:
    node = peers.target("a", peers.ssh(door=Flood))
    tracemalloc.start()
    try:
        answer = visit(node)["a"]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not isinstance(answer, Output) or answer.code == -1
    assert most < 12 << 20


def test_silent_peers_do_not_delay_the_others(peers: Peers) -> None:
    silent = [peers.target(f"silent{n}", peers.listen().getsockname()[1]) for n in range(5)]
    started = time.monotonic()
    answers = visit(*silent, peers.target("good", peers.ssh()))
    assert time.monotonic() - started < 3 * QUICK.connect_s  # one after the other they would take 5
    assert isinstance(answers["good"], Output)
    assert all(isinstance(answers[node.name], Unreachable) for node in silent)


FLEET = """\
groups:
  train:
    profile: hgx-h200-4
    os: debian12
    hosts:
      wrong-port: 127.0.0.1:{port}
      unknown: no-such-alias.invalid
      bad-jump: {{address: 127.0.0.1, ssh: {{jump: 'nobody@no-such-gate.invalid:2222'}}}}
      no-key: {{address: 127.0.0.1, ssh: {{port: {open}, identity_file: /nonexistent/key}}}}
      two-keys: {{address: 127.0.0.1, ssh: {{port: {open}, identity_file: {other}}}}}
ssh: {{known_hosts: {known}}}
"""
SAID = {
    "wrong-port": "no SSH on port {port}: connection refused; check the address, and that it is up;"
    " see fleet.yml:6",
    "unknown": f"no such host name: no-such-alias.invalid; {UNKNOWN_NAME}; see fleet.yml:7",
    "bad-jump": "through nobody@no-such-gate.invalid:2222: no such host name:"
    f" no-such-gate.invalid; {UNKNOWN_NAME}; see fleet.yml:8",
    "no-key": "the key /nonexistent/key does not exist; correct --identity, or ssh.identity_file in"
    " fleet.yml; see fleet.yml:9",
    "two-keys": "root@127.0.0.1 refused the key {other}; put the public key into its authorized_keys,"
    " or correct ssh: in fleet.yml; without a fleet, give -i FILE; see fleet.yml:10",
}


@pytest.mark.parametrize("name", SAID)
def test_a_mistake_of_a_connection_is_one_line_with_its_file_and_line(
    peers: Peers, tmp_path: Path, name: str
) -> None:
    server = peers.listen()
    places = {"port": server.getsockname()[1], "open": peers.ssh(), "known": peers.known_hosts}
    server.close()
    places["other"] = tmp_path / "other"
    paramiko.ECDSAKey.generate().write_private_key_file(str(places["other"]))
    fleet = parse_fleet(FLEET.format(**places), "fleet.yml")
    address = fleet.groups["train"].hosts[name]
    node = Target(name, address, fleet.connection_of("train", name), fleet.place_of(name))
    assert str(visit(node)[name]) == SAID[name].format(**places)


def test_where_a_lock_says_how_a_node_is_reached(tmp_path: Path) -> None:
    [(name, group)] = read_lock(RECORDED_LOCK).groups.items()
    hosts = {"a": "10.0.0.1", "b": "10.0.0.2"}
    changed = group.model_copy(update={"hosts": hosts, "connections": {"b": Connection(port=2222)}})
    write_lock(Lock(inputs="0", groups={name: changed}), tmp_path / "fleet.lock.yml")
    read = read_lock(tmp_path / "fleet.lock.yml")
    lines = (tmp_path / "fleet.lock.yml").read_text().splitlines()
    places = {target.name: target.place for target in targets(read)}
    places |= {f"{target.name} address": target.address_place for target in targets(read)}
    said = {"a": "connection:", "b": "b:", "a address": "a: 10.0.0.1", "b address": "b: 10.0.0.2"}
    for what, words in said.items():
        path, _, line = places[what].rpartition(":")
        assert (path, lines[int(line) - 1].strip()) == (str(tmp_path / "fleet.lock.yml"), words)
    assert read == read_lock(tmp_path / "fleet.lock.yml").model_copy()


def test_a_server_chooses_no_negative_prime(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse a group with which Paramiko would look for a secret without an end."""
    groups = SimpleNamespace(get_modulus=lambda *_: (2, -(1 << 2047) - 12345))
    monkeypatch.setattr(paramiko.Transport, "_modulus_pack", groups)
    transport = LimitedTransport(socket.create_connection(("127.0.0.1", peers.ssh())))
    transport.get_security_options().kex = (GROUP_EXCHANGE,)
    with closing(transport), pytest.raises(paramiko.SSHException, match="no prime and generator"):
        transport.start_client(timeout=10)


def test_a_server_announces_few_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse a number of extensions that Paramiko would count to the end, without a byte of them."""
    announced = paramiko.Message()
    announced.add_int(0xFFFFFFFF)
    assert "more than 64 extensions" in refused(monkeypatch, 7, announced.asbytes())
    few = paramiko.Message()
    few.add_int(1)
    few.add_string("server-sig-algs")
    few.add_string("ssh-ed25519")
    assert refused(monkeypatch, 7, few.asbytes()) == ""


@pytest.mark.parametrize("kind", [30, 31, 33, 34])
def test_a_packet_of_the_key_exchange_is_small(monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    """Refuse a number that takes seconds to read, the square of its length."""
    assert "more than 16384 bytes" in refused(monkeypatch, kind, bytes(16385))
    assert refused(monkeypatch, kind, bytes(16384)) == ""
    assert refused(monkeypatch, 94, bytes(16385)) == ""
    long = (1 << 18).to_bytes(4, "big")
    for beyond in (long, long + b"x", bytes(4) + long, bytes(3), b"\0\0\0\4" + long + bytes(8)):
        assert "a length beyond the packet" in refused(monkeypatch, kind, beyond)


def refused(monkeypatch: pytest.MonkeyPatch, kind: int, packet: bytes) -> str:
    """Return the error about a packet of a server; "" if it is passed on from its begin."""
    message = paramiko.Message(packet)
    monkeypatch.setattr(packets.Packetizer, "read_message", lambda _self: (kind, message))
    here, there = socket.socketpair()
    with closing(here), closing(there):
        try:
            assert packets._Packets(here).read_message() == (kind, message)
        except paramiko.SSHException as error:
            return str(error)
    assert message.get_so_far() == b""
    return ""
