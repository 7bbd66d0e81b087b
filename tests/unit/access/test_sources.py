"""Source addresses of current logins, which a change of the firewall on this machine must not lock out."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprov.access.scripts import node_script
from tests.unit.programs import write_program

FUNCTIONS = node_script("gpuprov.access", "node/throwaway.sh").partition("\ncase $1 in\nadd)")[0]
# `cat` without arguments: the title is its whole command line, as sshd's, and its name is that of its file.
PARENT = 'printf {name} >/proc/self/comm; exec 3<&0; (exec -a "$0" "$1" <&3 >&3); exit'
STRANGERS = (
    ("sshd", "sshd: [accepted]"),
    ("sshd", "sshd: [net]"),
    ("sshd", "sshd: root [net]"),
    ("sshd-auth", "sshd-auth: [session-auth]"),
    ("sshd-auth", "sshd-auth: unknown [net]"),
    ("sshd-session", "sshd-session: [accepted]"),
)
LOGINS = (
    ("sshd", "sshd: root@notty"),
    ("sshd", "sshd: ops [priv]"),
    ("sshd", "sshd: root"),
    ("sshd-session", "sshd-session: ops@pts/0"),
)


class Connections:
    """Connections to a played sshd, each with a process that holds its socket."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._rows, self._kept = folder, list[str](), list[socket.socket]()
        self._processes = list[subprocess.Popen[bytes]]()

    def open(self, peer: str, name: str, title: str, parent: str = "sshd") -> None:
        """Open a connection from an address, whose process has a name and a title.

        Args:
            parent: name of the parent process.
        """
        ours, theirs = socket.socketpair()
        program = self._folder / str(len(self._processes)) / name
        program.parent.mkdir()
        shutil.copy(shutil.which("cat") or "", program)
        words = ["bash", "--norc", "-c", PARENT.format(name=parent), title, str(program)]
        self._processes.append(subprocess.Popen(words, stdin=theirs, start_new_session=True))
        ours.sendall(b"\n")
        assert ours.recv(1) == b"\n"
        self._kept += [ours, theirs]
        self.add(peer, f"ino:{os.fstat(theirs.fileno()).st_ino}")

    def add(self, peer: str, inode: str) -> None:
        """Add a row to the output of ss."""
        self._rows.append(f"0 0 192.0.2.1:22 {peer}:50022 timer:(keepalive,9sec,0) {inode} sk:1 cgroup:/ <->")
        write_program(self._folder / "ss", "".join(f"echo '{row}'\n" for row in self._rows))

    def sources(self) -> list[str]:
        """Return the addresses that the script prints."""
        path = f"{self._folder}:{os.environ['PATH']}"
        words = ["sh", "-euc", f"{FUNCTIONS}\nPATH={path}\nsources 192.0.2.1,2001:db8::1, 'or sport = :22'"]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
        return [line.removeprefix("source ") for line in done.stdout.splitlines()]

    def close(self) -> None:
        """End all processes."""
        for each in self._kept:
            each.shutdown(socket.SHUT_RDWR)
            each.close()
        for process in self._processes:
            process.wait(20)


@pytest.fixture
def connections(tmp_path: Path) -> Iterator[Connections]:
    if os.getuid():
        pytest.skip("only root's processes count")
    played = Connections(tmp_path)
    yield played
    played.close()


@pytest.mark.parametrize(("name", "title"), STRANGERS)
def test_a_stranger_who_has_not_logged_in_prevents_no_firewall(
    connections: Connections, name: str, title: str
) -> None:
    connections.open("203.0.113.9", name, title)
    connections.open("192.0.2.7", *LOGINS[0])
    assert connections.sources() == ["192.0.2.7"]


@pytest.mark.parametrize(("name", "title"), LOGINS)
def test_a_login_counts_also_without_a_session(connections: Connections, name: str, title: str) -> None:
    connections.open("192.0.2.7", name, title, parent=name)
    assert connections.sources() == ["192.0.2.7"]


def test_a_connection_that_sshd_has_not_accepted_is_no_login(connections: Connections) -> None:
    connections.add("203.0.113.9", "ino:0")
    connections.add("203.0.113.10", "")
    assert connections.sources() == []


def test_the_title_of_another_program_hides_no_login(connections: Connections) -> None:
    connections.open("192.0.2.7", "sshd", "sshd: [accepted]", parent="bash")
    assert connections.sources() == ["192.0.2.7"]


@pytest.mark.parametrize("own", ["192.0.2.1", "[::ffff:192.0.2.1]", "[2001:db8::1]"])
def test_a_login_from_this_machine_itself_prevents_no_firewall(connections: Connections, own: str) -> None:
    connections.open(own, *LOGINS[0])
    connections.open("[2001:db8::11]", *LOGINS[0])
    assert connections.sources() == ["[2001:db8::11]"]
