"""The local machine as a node: the same interface as over SSH, but without SSH."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpuprov.errors import NodeFailed
from gpuprov.inventory.variables import variables_of
from gpuprov.model.connection import LOCAL, Connection
from gpuprov.model.fleet import parse_fleet
from gpuprov.probe import here
from gpuprov.probe.here import run_here
from gpuprov.ssh import transport
from gpuprov.ssh.dispatch import Dispatch
from gpuprov.ssh.route import route
from gpuprov.ssh.transport import ConnectionLimits, LocalSession, Target, fan_out
from gpuprov.verify.connection import here_argv
from gpuprov.verify.shell import Shell

HERE = Target("here", LOCAL, Connection())


def test_a_fleet_says_that_a_host_is_this_machine() -> None:
    fleet = parse_fleet(
        "groups: {gpu: {profile: hgx-a100-4, os: debian12, hosts: {here: local}}}\n", "fleet.yml"
    )
    assert fleet.groups["gpu"].hosts == {"here": LOCAL}


def test_the_way_to_this_machine_is_no_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here.os, "geteuid", lambda: 0)
    way = route(LOCAL, Connection(user="ubuntu", port=2222))
    assert (way.local, way.user, way.login, way.port, way.place) == (
        True,
        "root",
        "ubuntu",
        2222,
        "this machine",
    )
    assert route(LOCAL, Connection()).login == "root"
    assert not route("localhost", Connection()).local


def test_commands_run_here_with_what_a_login_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("VIRTUAL_ENV", "/opt/venv")
    monkeypatch.setenv("PATH", "/opt/venv/bin:/opt/conda/bin:/usr/bin")
    monkeypatch.setattr(transport, "connect", None)
    [(_, message)] = fan_out([HERE], lambda session: session.run("env; cat; exit 3", b"said"))
    assert isinstance(message, transport.Output)
    lines = message.stdout.decode().splitlines()
    assert f"PATH={here.SYSTEM_PATH}:/opt/conda/bin" in lines
    assert not [line for line in lines if line.startswith(("PYTHONPATH", "VIRTUAL_ENV"))]
    assert (lines[-1], message.code) == ("said", 3)


def test_what_the_answers_need_is_done_while_the_node_is_under_way() -> None:
    done = threading.Event()
    [(_, answer)] = fan_out([HERE], lambda session: done.wait(10), meanwhile=done.set)
    assert answer is True


def test_workers_have_their_nodes_after_what_the_answers_need() -> None:
    order: list[str] = []

    class Alone:
        """A crew of no workers."""

        def do(self, part: Any, each: Any, **_: Any) -> Iterator[tuple[str, str]]:
            order.append("workers")
            yield "here", "answered"

    dispatch = Dispatch(crew=Alone())
    answers = fan_out([HERE], str, dispatch=dispatch, meanwhile=lambda: order.append("meanwhile"))
    assert [answer for _, answer in answers] == ["answered"]
    assert order == ["meanwhile", "workers"]


def test_commands_start_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the folder, as Python imports modules of the one that it starts in."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    assert LocalSession(HERE, ConnectionLimits()).run("pwd").stdout == f"{home}\n".encode()
    with closing(LocalSession(HERE, ConnectionLimits()).converse("pwd")) as talk:
        assert talk.hear(lambda said: said.endswith(b"\n"), 20)[0] == f"{home}\n".encode()
    home.rmdir()
    assert run_here("pwd", seconds=30, limit=100).stdout == b"/\n"


def test_a_command_that_hangs_ends_with_all_that_it_started() -> None:
    begun = time.monotonic()
    with pytest.raises(NodeFailed, match=r"no answer within 0\.5 s"):
        LocalSession(HERE, ConnectionLimits(command_s=0.5)).run("sleep 60 & sleep 60")
    assert time.monotonic() - begun < 10


def test_an_answer_without_end_is_refused() -> None:
    with pytest.raises(NodeFailed, match="answered more than 1 MB"):
        run_here("yes", seconds=30, limit=1 << 20)


def test_status_255_is_the_command_s_own() -> None:
    assert run_here("exit 255", seconds=30, limit=10).code == 255


def test_a_command_that_reads_nothing() -> None:
    assert run_here("true", b"x" * 1_000_000, seconds=30, limit=10).code == 0


def test_ansible_uses_no_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here.os, "geteuid", lambda: 1000)
    shared, own = variables_of({"here": (LOCAL, Connection()), "gpu01": ("10.0.0.1", Connection())}, None)
    assert not {"ansible_connection", "ansible_user"} & set(shared)
    assert own["here"] == {
        "ansible_connection": "local",
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_become": True,
    }
    assert own["gpu01"]["ansible_user"] == "root"


def test_verify_opens_its_shell_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(here.os, "geteuid", lambda: 0)
    assert "ssh" not in " ".join(here_argv(route(LOCAL, Connection())))
    shell = Shell(here_argv(route(LOCAL, Connection())), 10)
    shell.open()
    assert shell.ask(f"echo seen >{tmp_path}/seen; cat {tmp_path}/seen")[:2] == (0, b"seen\n")
    shell.close()
    monkeypatch.setattr(here.os, "geteuid", lambda: 1000)
    assert "sudo -n -- sh" in here_argv(route(LOCAL, Connection()))[-1]
