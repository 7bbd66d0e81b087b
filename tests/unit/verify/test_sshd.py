"""Commands for sshd in verify, and results from the answers of a node."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprov.errors import NodeFailed
from gpuprov.verify.observers.sshd import (
    ASKED_MAX,
    LISTENERS_MAX,
    PROCESSES,
    SOCKETS,
    TIMES,
    Answer,
    Listener,
    Sshd,
    addresses,
)
from tests.unit.programs import write_program

MACHINE = {
    "rows=$(ps -C sshd": "1 0 0 1 0\n9 0 0 1 0\n",
    "ps -ww": "9 sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups\n",
    "readlink /proc/": "/usr/sbin/sshd\n/usr/sbin/sshd\n",
    "sockets=$(ss": "LISTEN 0 128 0.0.0.0:22 0.0.0.0:* ino:7 sk:1\n",
    "find": "socket:[7]\n",
}
"""Beginnings of commands, and the answers of a node whose sshd has no Match blocks."""


class Machine:
    """A node that answers by the beginning of a command.

    `asked` are the commands, `answer` is the text of `sshd -T`.
    """

    def __init__(self) -> None:
        self.answers: dict[str, str] = dict(MACHINE)
        self.asked: list[str] = []
        self.answer = "port 22"

    def run(self, command: str, *words: str) -> SimpleNamespace:
        """Return the answer to a command."""
        command = command % tuple(map(shlex.quote, words)) if words else command  # as testinfra
        self.asked.append(command)
        out = next((text for start, text in self.answers.items() if command.startswith(start)), "")
        if command.startswith("for who in"):
            out = f"== \n{self.answer}\n" * command.count("user=")
        return SimpleNamespace(stdout=out, stderr="", rc=0, succeeded=True, command=command.encode())


def machine(answers: Mapping[str, str]) -> tuple[Machine, Any]:
    """Return a node with some other answers, and its observer of sshd."""
    node = Machine()
    node.answers |= answers
    return node, Sshd.get_module(node)


@pytest.mark.parametrize(
    ("keyword", "criteria", "found"),
    [
        ("address", "address 10.0.0.0/8", ["10.0.0.1"]),
        ("address", 'user root address="192.0.2.*,2001:db8::/64"', ["192.0.2.1", "2001:db8::1"]),
        ("address", "address 10.0.0.0/8,!10.1.0.0/16,192.0.2.0/24", ["10.0.0.1", "192.0.2.1"]),
        ("address", "localaddress 10.0.0.0/8", []),
        ("localaddress", "address 10.0.0.0/8", []),
        ("localaddress", "address 10.0.0.0/8 localaddress 172.16.0.5", ["172.16.0.5"]),
    ],
)
def test_a_match_block_is_asked_for_its_addresses(keyword: str, criteria: str, found: list[str]) -> None:
    assert [*addresses(keyword, criteria)] == found


def test_sshd_is_asked_for_the_addresses_of_its_match_blocks() -> None:
    blocks = "Match Address 10.0.0.0/8\nMatch LocalAddress 172.16.0.0/12\n"
    node, observer = machine({"grep -D skip -rshiE": blocks})
    observer.answers("ops")
    [asked] = [command for command in node.asked if command.startswith("for who in")]
    assert set(re.findall(r",addr=(\S+?),laddr=(\S+?),", asked)) == {
        ("127.0.0.1", "127.0.0.1"),
        ("198.51.100.1", "127.0.0.1"),
        ("10.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "172.16.0.1"),
    }


@pytest.mark.parametrize(
    "blocks",
    [
        "Match Address " + ",".join(f"10.0.{each}.0/24" for each in range(ASKED_MAX)),
        "Match LocalAddress " + ",".join(f"10.0.0.{each}" for each in range(1, ASKED_MAX)),
        "Match LocalPort 22",
    ],
)
def test_too_many_match_blocks_are_a_failure_without_a_question(blocks: str) -> None:
    ports = "".join(f"LISTEN 0 128 0.0.0.0:{each} 0.0.0.0:* ino:7 sk:1\n" for each in range(1, 2000))
    node, observer = machine({"grep -D skip -rshiE": f"{blocks}\n", "sockets=$(ss": ports})
    with pytest.raises(NodeFailed, match="too many Match blocks"):
        observer.answers("ops")
    assert not [command for command in node.asked if command.startswith("for who in")]


def test_too_many_different_listeners_are_a_failure() -> None:
    title = "{0} sshd: /usr/sbin/sshd -p {1} [listener] 0 of 10-100 startups\n"
    same = "".join(title.format(9 + each, 22) for each in range(2 * LISTENERS_MAX))
    other = "".join(title.format(9 + each, 22 + each) for each in range(2 * LISTENERS_MAX))
    processes = "1 0 0 1 0\n" + "".join(f"{9 + each} 0 0 1 0\n" for each in range(2 * LISTENERS_MAX))
    _, observer = machine({"rows=$(ps -C sshd": processes, "ps -ww": same})
    assert len({each.options for each in observer.listeners}) == 1
    node, observer = machine({"rows=$(ps -C sshd": processes, "ps -ww": other})
    with pytest.raises(NodeFailed, match="more than 8 processes of sshd listen"):
        observer.answers("ops")
    assert len(node.asked) <= LISTENERS_MAX + 3


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("\n".join(f"port {each}" for each in range(2001, 2010)), "sshd names more than 8 ports"),
        ("port 22\nport 65536", "sshd names the port 65536"),
        ("port 0", "sshd names the port 0"),
        ("port 22 -oProxyCommand=x", "sshd names the port 22 -oProxyCommand=x"),
    ],
)
def test_ports_beyond_the_limit_are_a_failure(answer: str, message: str) -> None:
    node, observer = machine({})
    node.answer = answer
    with pytest.raises(NodeFailed, match=message):
        observer.ports_of_options("ops")


def test_ports_of_sshd_are_those_of_its_options() -> None:
    node, observer = machine({})
    node.answer = "\n".join(f"port {each}" for each in (22, 22, *range(2001, 2008)))
    assert observer.ports_of_options("ops") == {22, *range(2001, 2008)}


def test_only_the_command_lines_of_root_s_sshd_are_read() -> None:
    """Leave out a setuid program, and users' ones: theirs can be of any length."""
    processes = "1 0 0 1 0\n9 0 0 1 0\n10 0 1000 1 0\n11 1000 1000 1 0\n"
    node, observer = machine({"rows=$(ps -C sshd": processes, "ps -ww": "9 /usr/sbin/sshd -D\n"})
    assert [each.pid for each in observer.listeners] == ["9"]
    assert [command for command in node.asked if command.startswith("ps -ww")] == [
        "ps -ww -o pid=,args= -p 9"
    ]


@pytest.mark.parametrize(
    ("held", "ports"), [("socket:[7]\n", [22]), ("socket:[8]\nsocket:[77]\n", []), ("", [])]
)
def test_the_ports_of_sshd_are_those_of_its_own_sockets(held: str, ports: list[int]) -> None:
    """Look at the open files of root's sshd and of systemd alone: a user can have millions."""
    node, observer = machine({"find": held})
    assert observer.ports == observer.ports_of_systemd == ports
    folders = [command.split()[1] for command in node.asked if command.startswith("find")]
    assert folders == ["/proc/9/fd", "/proc/1/fd"]


def test_sockets_of_users_are_not_in_the_answer(tmp_path: Path) -> None:
    """Leave them out on the node: with their processes they can be a list of any length."""
    rows = "LISTEN 0 9 *:22 *:* ino:7 sk:1 cgroup:/system.slice/a\\\\x2db\\\\c.service"
    write_program(tmp_path / "ss", f"cat <<'END'\n{rows} uid:1000\n{rows}\nEND")
    (tmp_path / "none").mkdir()
    write_program(tmp_path / "none/ss", "exit 3")

    def said(folder: Path) -> tuple[int, str]:
        """Return status and output of the command, with a program `ss` in a folder."""
        path = f"{folder}:{os.environ['PATH']}"
        done = subprocess.run(["sh", "-c", SOCKETS], capture_output=True, check=False, env={"PATH": path})
        return done.returncode, done.stdout.decode()

    assert said(tmp_path) == (0, f"{rows}\n")
    assert said(tmp_path / "none")[0] == 3


def test_processes_of_users_named_sshd_are_not_in_the_answer(tmp_path: Path) -> None:
    rows = ["      1     0     0 4026531836  99", "     59     0     0 4026531836  90"]
    users = [f"{pid} 1000  1000 4026531836  9" for pid in range(100, 300_000)]
    (tmp_path / "rows").write_text("\n".join([rows[0], *users, rows[1], " 70 0 1000 4026531836 9\n"]))
    write_program(tmp_path / "ps", f"cat {tmp_path}/rows")
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(["sh", "-c", PROCESSES], capture_output=True, check=True, env={"PATH": path})
    assert done.stdout.decode().splitlines() == rows


@pytest.mark.skipif(shutil.which("bash") is None, reason="its shell is another one")
@pytest.mark.parametrize(("program", "command"), [("ps", PROCESSES), ("ss", SOCKETS)])
def test_bash_needs_no_room_in_tmp_for_the_rows_of_sshd(program: str, command: str, tmp_path: Path) -> None:
    """Have a shell that can write no file, as sh of RHEL where a user has filled /tmp: sshd is looked at."""
    row = "LISTEN 0 9 *:22 *:* ino:7 sk:1" if program == "ss" else " 1  0  0  4026531836  99"
    write_program(tmp_path / program, f"yes '{row}' | head -c 300000")
    full = f"trap '' XFSZ; ulimit -f 0; {command}"
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "BASH_COMPAT": "5.0"}
    done = subprocess.run(["bash", "-c", full], capture_output=True, check=True, env=environment)
    assert row.encode() in done.stdout
    assert done.stderr == b""


@pytest.mark.parametrize("path", ["none", "run/sshd.pid", "/run/a b", "/run/$(id)", "/run/\N{EM DASH}", "-x"])
def test_only_a_plain_path_is_read_as_sshd_s_pid_file(path: str) -> None:
    node, observer = machine({"date +%s": "1000\n\n"})
    answer = Answer("ops", "127.0.0.1", "sshd", f"pidfile {path}\n")
    assert [*observer._unread(Listener("9", 5, "sshd", ()), answer)] == []
    [asked] = [command for command in node.asked if command.startswith("date")]
    assert path not in shlex.split(asked)


@pytest.mark.parametrize(
    ("said", "options", "unread"),
    [
        ("SSHD_OPTS=\n", "", False),
        ("", "", False),
        ('SSHD_OPTS="-o UseDNS=no  -4"\n', " -o UseDNS=no -4", False),
        ('SSHD_OPTS="-o PermitRootLogin=yes"\n', "", True),
        ("", " -4", True),
    ],
)
def test_a_file_read_at_the_start_counts_by_its_options(said: str, options: str, unread: bool) -> None:
    path = "/etc/default/ssh"
    _, observer = machine({"date +%s": f"1000\n\n999 {path}\n", "grep -sE '^(SSHD": said})
    listener = Listener("9", 500, f"/usr/sbin/sshd -D{options}", ())
    found = [*observer._unread(listener, Answer("ops", "127.0.0.1", "sshd", "pidfile none\n"))]
    assert found == ([path] if unread else [])


@pytest.mark.parametrize("kind", ["fifo", "device", "large", "lines", "none"])
def test_a_pid_file_is_read_only_if_it_is_a_regular_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "pid"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind in ("large", "lines"):
        path.write_text("9\n" + ("9 /etc/x\n" if kind == "lines" else "a" * (1 << 20)))
    command = TIMES.format(" /etc") % ((shlex.quote(str(path)),) * TIMES.count(" %s"))
    said = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=5)
    now, number, *rows = said.stdout.splitlines()
    assert now.isdecimal()
    assert number == {"large": "9", "lines": "99"}.get(kind, "")
    assert [row.rpartition(" ")[2] for row in rows] == ["/etc"]


def test_where_no_sshd_could_run_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(said: str) -> None:
        """Let `sshd -T` end with status 255 and this message."""

        def answers(*_: object) -> Iterator[Answer]:
            raise NodeFailed(f"sshd -T of sshd ended with status 255: {said}")
            yield

        monkeypatch.setattr(observer, "_answers", answers)

    _, observer = machine({})
    observer.__dict__["listeners"] = []
    refuse("Missing privilege separation directory: /run/sshd")
    assert observer.answers("root") == []
    refuse("line 1: Bad configuration option")
    with pytest.raises(NodeFailed, match="Bad configuration"):
        observer.answers("root")


def test_groups_of_the_login_are_those_of_id() -> None:
    _node, sshd = machine({"id -nG 'ops x'": "users admins\n"})
    assert sshd.groups_of("ops x") == {"users", "admins"}
    assert sshd.groups_of("gpuprov-unknown") == set()


@pytest.mark.parametrize(
    ("shown", "parent", "astray"),
    [
        ("MainPID=9\nActiveState=active\n", "1", False),
        ("MainPID=0\nActiveState=inactive\n\nMainPID=9\nActiveState=active\n", "1", False),
        ("MainPID=8\nActiveState=active\n", "8", False),  # that of a connection, before it has a title
        ("MainPID=8\nActiveState=active\n", "", False),  # it has ended
        ("MainPID=9\nActiveState=inactive\n", "1", True),
        ("MainPID=0\nActiveState=active\n", "1", True),
        ("MainPID=9\nActiveState=failed\n", "1", True),
    ],
)
def test_a_listener_is_the_main_process_of_a_unit_that_runs(shown: str, parent: str, astray: bool) -> None:
    _, observer = machine({"systemctl show": shown, "ps -o ppid=": f"   {parent}\n"})
    assert observer.astray == ["process 9 (/usr/sbin/sshd -D)"] * astray
