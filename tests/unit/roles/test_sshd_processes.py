"""Listening sshd processes that are not the main process of sshd's unit: on a node in Python and in sh."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpuprov_node
import gpuprov_sshd
import pytest

from gpuprov.access.scripts import node_script
from tests.unit.programs import write_program
from tests.unit.roles.scripts import script

TITLE = "sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups"
SESSION = "sshd: ops@pts/0"
SHOWN = "Id={0}\nLoadState={1}\nActiveState={2}\nMainPID={3}\n"
restart: Any = script("ssh_hardening", "restart")
FAKE = """\
case "$*" in
"cat ssh.service") exit 0 ;;
*is-active*) test {state} = active ;;
*--value*) echo {main} ;;
show*) printf 'Id=ssh.service\\nLoadState=loaded\\nActiveState={state}\\nMainPID={main}\\n' ;;
*) echo "$*" >>{folder}/calls ;;
esac
"""


def started(title: str, user: int = 0) -> subprocess.Popen[bytes]:
    """Start a process with the name sshd and this title, which waits for its input, a socket."""
    if os.getuid():
        pytest.skip("only root's processes count")
    # bash with a socket as its input would read ~/.bashrc, as if sshd had started it.
    words = [title, "--norc", "-c", "printf sshd >/proc/self/comm; echo >&0; read -r"]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(words, executable="/bin/bash", stdin=theirs, user=user or None)
        INODES[process.pid] = os.fstat(theirs.fileno()).st_ino
        assert ours.recv(1) == b"\n"
        OPEN[process.pid] = ours.dup()
    return process


INODES: dict[int, int] = {}
"""Started process → number of its socket."""
OPEN: dict[int, socket.socket] = {}
"""Started process → the other end of its socket."""


@pytest.fixture
def listener() -> Iterator[subprocess.Popen[bytes]]:
    """A process with the name and title of a listening sshd."""
    process = started(TITLE)
    yield process
    process.kill()
    process.communicate()


def play(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    pid: int,
    main: int | str,
    state: str = "active",
    owner: str = "",
) -> None:
    """Put programs into PATH that know sshd's unit with a main process, and one listening socket.

    Args:
        owner: of the socket, as `ss` prints it; empty for root.
    """
    write_program(folder / "systemctl", FAKE.format(folder=folder, state=state, main=main))
    row = f"LISTEN 0 128 [::]:22 [::]:* {owner}ino:{INODES.get(pid, 0)} sk:1 cgroup:/ <->"
    write_program(folder / "ss", f"echo '{row}'; echo '{row}'; echo $* >>{folder}/asked")
    write_program(folder / "sshd", "echo port 22")
    path = f"{folder}:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    monkeypatch.setitem(gpuprov_node.ENVIRONMENT, "PATH", path)


def in_shell(function: str) -> str:
    """Return the output of a function of sshd.sh."""
    words = ["sh", "-euc", f"{node_script('gpuprov.access', 'node/sshd.sh')}\n{function}"]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize(
    ("blocks", "unit"),
    [
        ([("ssh.service", "loaded", "active", "9")] * 2, ("ssh.service", "9")),
        (
            [("ssh.service", "masked", "active", "9"), ("sshd.service", "error", "inactive", "0")],
            ("ssh.service", "9"),
        ),
        ([("ssh.service", "loaded", "inactive", "9")] * 2, ("ssh.service", "0")),
        (
            [("ssh.service", "not-found", "inactive", "0"), ("sshd.service", "loaded", "active", "9")],
            ("sshd.service", "9"),
        ),
        ([], ("sshd.service", "0")),
    ],
)
def test_the_main_process_is_that_of_the_unit_while_it_runs(
    monkeypatch: pytest.MonkeyPatch, blocks: list[tuple[str, ...]], unit: tuple[str, str]
) -> None:
    shown = "\n".join(SHOWN.format(*block) for block in blocks)
    monkeypatch.setattr(gpuprov_sshd, "output", lambda *_argv: shown)
    assert gpuprov_sshd.unit() == unit


def test_a_listener_is_the_main_process_or_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, listener: subprocess.Popen[bytes]
) -> None:
    play(monkeypatch, tmp_path, listener.pid, listener.pid)
    assert gpuprov_sshd.others() == []
    assert in_shell("other_sshd ''") == ""
    play(monkeypatch, tmp_path, listener.pid, os.getpid())  # a child of the main process: a connection
    assert gpuprov_sshd.others() == []
    assert in_shell("other_sshd ''") == ""
    for main, state in ((listener.pid, "inactive"), ("0", "active"), (1, "active")):
        play(monkeypatch, tmp_path, listener.pid, main, state)
        [other] = gpuprov_sshd.others()
        assert other == (listener.pid, os.getpid(), "/usr/sbin/sshd -D", ("22",), False)
        assert in_shell("other_sshd ''") == f"elsewhere {listener.pid}\n"
        assert in_shell("sshd_elsewhere") == f"{listener.pid}\n"
    asked = (tmp_path / "asked").read_text().splitlines()
    assert {each.partition(" ")[0] for each in asked} == {
        "-Hltne"
    }  # not -p, for which ss looks at all open files


@pytest.mark.parametrize(("title", "user"), [(SESSION, 0), (TITLE, 65534)])
def test_a_session_and_a_program_of_a_user_are_no_listeners(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, title: str, user: int
) -> None:
    """Check that a session that forwards a port, and a user's program with sshd's title, do not count."""
    process = started(title, user)
    try:
        play(monkeypatch, tmp_path, process.pid, "0")
        assert gpuprov_sshd.others() == []
        assert in_shell("other_sshd ''") == ""
    finally:
        process.kill()
        process.communicate()


def test_the_title_of_a_user_s_program_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave it unread: a user can make it gigabytes long by prctl(2), PR_SET_MM_MAP."""
    process = started(TITLE, 65534)
    files: list[str] = []
    text = gpuprov_sshd._text
    monkeypatch.setattr(gpuprov_sshd, "_text", lambda path: files.append(path) or text(path))
    try:
        play(monkeypatch, tmp_path, process.pid, "0")
        write_program(tmp_path / "tr", f"readlink /proc/self/fd/0 >>{tmp_path}/read")
        assert gpuprov_sshd.others() == []
        assert in_shell("other_sshd ''") == ""
    finally:
        process.kill()
        process.communicate()
    read = tmp_path / "read"  # also the titles of this machine's own sshd
    files += read.read_text().splitlines() if read.exists() else []
    assert f"/proc/{process.pid}/cmdline" not in files


def test_a_socket_of_a_user_is_not_sshd_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, listener: subprocess.Popen[bytes]
) -> None:
    """Leave out the sockets of users, also if root's sshd has one."""
    play(monkeypatch, tmp_path, listener.pid, "0", owner="uid:1000 ")
    assert gpuprov_sshd.listening() == {}
    assert in_shell("other_sshd ''") == ""


@pytest.mark.parametrize("end", ["\r", "\v", "\u2028"])
def test_the_name_of_a_user_s_control_group_is_no_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str
) -> None:
    """Check ends of lines that the kernel permits in such a name: it could state a socket of root."""
    row = "LISTEN 0 128 0.0.0.0:22 0.0.0.0:* ino:7 sk:1 cgroup:/ <->"
    forged = (
        f"LISTEN 0 5 *:80 *:* uid:1000 ino:8 sk:2 cgroup:/a{end}{row.replace(':22', ':2222')}{end} ino:9 <->"
    )
    write_program(tmp_path / "ss", f"cat <<'END'\n{row}\n{forged}\nEND")
    monkeypatch.setitem(gpuprov_node.ENVIRONMENT, "PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert gpuprov_sshd.listening() == {"7": "22"}
    assert gpuprov_sshd.listening(everyone=True) == {"7": "22", "8": "80"}


def test_a_file_that_sshd_closes_meanwhile_does_not_hide_its_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, listener: subprocess.Popen[bytes]
) -> None:
    """Look at sshd although strangers connect all the time: find ends with 1 if it misses a file."""
    play(monkeypatch, tmp_path, listener.pid, "0")
    write_program(tmp_path / "find", 'PATH=/usr/bin:/bin find "$@"; exit 1')
    assert in_shell("other_sshd ''") == f"elsewhere {listener.pid}\n"


def test_a_process_that_ends_meanwhile_does_not_end_the_look(tmp_path: Path) -> None:
    (tmp_path / "comm").write_text("sshd\n")
    assert in_shell(f"is_root_s {tmp_path} sshd 2>/dev/null || echo no") == "no\n"


def test_a_restart_ends_a_lost_process_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Check the order: sshd's files are checked, the process is ended, and then the unit restarts."""
    did: list[Any] = []
    lost = gpuprov_sshd.Listener(9, 1, "/usr/sbin/sshd -D", ("22",), True)
    monkeypatch.setattr(gpuprov_sshd, "others", lambda: [lost, lost._replace(pid=10, in_unit=False)])
    monkeypatch.setattr(restart, "PORT_START", tmp_path / "start")
    monkeypatch.setattr(restart, "end", did.append)
    monkeypatch.setattr(restart, "_try_files", lambda: did.append("tried"))
    monkeypatch.setattr(restart.gpuprov_unit, "settle", lambda *words, **_named: did.append(words))
    assert restart.restart("ssh.service", needed=False, check=True) == {"changed": True}
    assert did == []
    assert restart.restart("ssh.service", needed=False, check=False) == {"changed": True}
    assert did == ["tried", lost, ("ssh.service", None, "restarted")]
    monkeypatch.setattr(gpuprov_sshd, "others", list)
    assert restart.restart("ssh.service", needed=False, check=False) == {"changed": False}


@pytest.mark.parametrize(("first", "meanwhile"), [("1024", "2223"), ("0", "2223"), ("3000", "3000")])
def test_users_cannot_listen_on_the_highest_port_of_sshd_meanwhile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: str, meanwhile: str
) -> None:
    start = tmp_path / "start"
    start.write_text(first)
    shown = subprocess.CompletedProcess([], 0, "port 22\nport 2222\nmaxauthtries 6\n", "")
    monkeypatch.setattr(restart, "PORT_START", start)
    monkeypatch.setattr(restart, "_sshd", lambda _option: shown)
    with restart.kept_ports():
        assert start.read_text() == meanwhile
    assert start.read_text() == first


def test_a_process_that_does_not_end_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, listener: subprocess.Popen[bytes]
) -> None:
    lost = gpuprov_sshd.Listener(listener.pid, 1, "/usr/sbin/sshd -D", ("22",), True)
    monkeypatch.setattr(restart, "SECONDS_TO_END", 0.2)
    with pytest.raises(restart.Failed, match=rf"process {listener.pid} .* does not end"):
        restart.end(lost)  # it remains as a child of this process
    assert listener.wait(5) == -signal.SIGTERM
    restart.end(lost)


UNIT = """\
# /lib/systemd/system/ssh.service
[Unit]
ConditionPathExists=!/etc/ssh/sshd_not_to_be_run

[Service]
ExecStart=/usr/sbin/sshd -D
"""
NO_SSHD = "/etc/sshd.service.d/a.conf:3 ExecStart=/bin/true"
UNMET = "/lib/systemd/system/ssh.service:2 ConditionPathExists=!/etc/ssh/sshd_not_to_be_run"
MET, FAILED = "Conditions succeeded.", "Conditions failed."
NO_ROOM = "Failed to initialize unit search paths: No space left on device"
"""Message of systemd-analyze in a /tmp that a user has filled."""


@pytest.mark.parametrize(
    ("more", "said", "found"),
    [
        ("", MET, []),
        ("", FAILED, [UNMET]),
        ("", "Unknown operation 'condition'.", [UNMET, "(Unknown operation 'condition'.)"]),
        ("", NO_ROOM, [UNMET, f"({NO_ROOM})"]),
        ("\n# /etc/sshd.service.d/a.conf\n[Service]\nExecStart=\nExecStart=/bin/true\n", MET, [NO_SSHD]),
        (
            "\n# /etc/sshd.service.d/a.conf\n[Service]\nExecStart=\nExecStart=/bin/true\n",
            FAILED,
            [NO_SSHD, UNMET],
        ),
        (
            "\n# /etc/sshd.service.d/a.conf\n[Service]\nExecStart=\nExecStart=/opt/wrap /usr/sbin/sshd -D\n",
            MET,
            [],
        ),
    ],
)
def test_what_keeps_sshd_from_starting_again_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: str, said: str, found: list[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["look.py", '{"options": {}, "login": "root"}'])
    look: Any = script("ssh_hardening")
    play(monkeypatch, tmp_path, 1, 1)
    (tmp_path / "unit").write_text(UNIT + more)
    is_socket = "*is-active*socket*) exit 3 ;;"
    shown = f'case "$*" in {is_socket} "cat ssh.service") cat {tmp_path}/unit ;; esac'
    write_program(tmp_path / "systemctl", shown)
    write_program(tmp_path / "systemd-analyze", f'echo "{said}" >&2; [ "{said}" = "{MET}" ]')
    assert look.hindrance("ssh.service") == found
    assert sorted(in_shell("sshd_hindrance").splitlines()) == sorted(found)
