"""Host keys at first contact: only valid keys are pinned, also in parallel, and no revoked key."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from gpuprov.bootstrap import contact
from gpuprov.bootstrap.hostkeys import HostKeys
from gpuprov.errors import Unreachable
from gpuprov.model.connection import Connection
from gpuprov.ssh.known_hosts import read_known_hosts

KEY, OTHER = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()


def words(key: paramiko.PKey) -> str:
    """Return a key as `TYPE BASE64`."""
    return f"{key.get_name()} {key.get_base64()}"


@pytest.fixture
def pinned(tmp_path: Path) -> HostKeys:
    """Return host keys whose file does not exist yet."""
    return HostKeys(tmp_path / "ssh/known_hosts", None)


@pytest.mark.parametrize(
    "line",
    ["", "ssh-ed25519", "ssh-ed25519 %%%", "ssh-ed25519 AAAA", "é é", "ssh-dss AAAAB3NzaC1kc3M=", "# a"],
)
def test_what_a_node_prints_is_a_key_or_is_left_out(pinned: HostKeys, line: str) -> None:
    assert pinned.pin("gpu01", 22, [line, words(KEY)]) == 1
    assert pinned.path.read_text() == f"gpu01 {words(KEY)}\n"
    assert HostKeys(pinned.path, None).knows("gpu01", 22)


def test_only_a_keys_own_text_is_written(pinned: HostKeys) -> None:
    assert pinned.pin("gpu01", 2222, [f"{words(KEY)} @revoked * and more"]) == 0
    assert pinned.path.read_text() == f"[gpu01]:2222 {words(KEY)}\n"


def test_a_node_has_one_key_of_each_type_however_many_it_prints(pinned: HostKeys) -> None:
    assert pinned.pin("gpu01", 22, [words(KEY), *([words(OTHER)] * 1000)]) == 0
    assert pinned.path.read_text() == f"gpu01 {words(KEY)}\n"
    assert pinned.pin("gpu01", 22, [words(OTHER)]) == 0
    assert pinned.path.read_text() == f"gpu01 {words(KEY)}\n"


def test_a_line_that_was_cut_off_is_not_continued(pinned: HostKeys) -> None:
    pinned.path.parent.mkdir()
    pinned.path.write_text("gpu00 ssh-ed25519 AAAA")
    pinned.pin("gpu01", 22, [words(KEY)])
    assert pinned.path.read_text() == f"gpu00 ssh-ed25519 AAAA\ngpu01 {words(KEY)}\n"
    assert pinned.knows("gpu01", 22)


def test_many_pin_at_once(tmp_path: Path) -> None:
    """Threads of one run and parallel runs neither lose, truncate nor duplicate a line."""
    path = tmp_path / "known_hosts"
    runs = [HostKeys(path, None) for _ in range(4)]
    names = [f"gpu{number:03}" for number in range(40)]
    with ThreadPoolExecutor(16) as pool:
        list(
            pool.map(lambda job: job[0].pin(job[1], 22, [words(KEY)]), [(r, n) for n in names for r in runs])
        )
    assert sorted(path.read_text().splitlines()) == [f"{name} {words(KEY)}" for name in names]


def test_what_another_run_pinned_meanwhile_is_seen(tmp_path: Path) -> None:
    one, two = (HostKeys(tmp_path / "known_hosts", None) for _ in range(2))
    one.pin("gpu01", 22, [words(KEY)])
    two.pin("gpu01", 22, [words(OTHER)])
    assert (tmp_path / "known_hosts").read_text() == f"gpu01 {words(KEY)}\n"
    assert two.trusts("gpu01", 22, KEY)


@pytest.mark.parametrize("where", ["pinned", "given"])
def test_a_revoked_key_is_refused_whoever_vouches_for_it(tmp_path: Path, where: str) -> None:
    files = {"pinned": f"gpu01 {words(KEY)}\n", "given": f"gpu01 {words(KEY)}\n"}
    files[where] += f"@revoked * {words(KEY)}\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    keys = HostKeys(tmp_path / "pinned", tmp_path / "given")
    with pytest.raises(Unreachable, match=rf"host key of gpu01 is revoked in {tmp_path}/{where}:2"):
        keys.trusts("gpu01", 22, KEY)


def test_a_file_that_vouches_for_others_names_its_broken_lines(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("gpu01 ssh-ed25519 %%%\n")
    keys = HostKeys(tmp_path / "pinned", tmp_path / "given")
    with pytest.raises(Unreachable, match=r"given has no key of gpu01; .*given:1 is not base64"):
        keys.trusts("gpu01", 22, KEY)


def test_broken_lines_of_before_are_left_as_they_are(pinned: HostKeys) -> None:
    pinned.path.parent.mkdir()
    pinned.path.write_text("gpu00 ssh-ed25519 %%%\n")
    keys = HostKeys(pinned.path, None)
    keys.pin("gpu01", 22, [words(KEY)])
    assert read_known_hosts(pinned.path).broken == {1: "not base64"}
    assert keys.trusts("gpu01", 22, KEY)


@pytest.fixture
def half_open() -> Iterator[int]:
    """Port of a server that sends an SSH banner and then nothing."""
    server = socket.create_server(("127.0.0.1", 0))
    taken: list[socket.socket] = []

    def serve() -> None:
        """Accept one connection, send only a version, and keep it open."""
        with suppress(OSError):
            client, _ = server.accept()
            taken.append(client)
            client.sendall(b"SSH-2.0-half\r\n")

    threading.Thread(target=serve, daemon=True).start()
    yield int(server.getsockname()[1])
    for each in (server, *taken):
        each.close()


def test_a_server_that_stops_before_its_key_is_not_reached(
    half_open: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raise Unreachable at the contact itself; a later error at its host key would end the whole run."""
    monkeypatch.setattr(contact, "LIMITS", replace(contact.LIMITS, connect_s=0.5))
    login = contact.Login(user=os.environ.get("USER", "root"), port=half_open)
    with pytest.raises(
        Unreachable, match=f"no SSH on 127.0.0.1 port {half_open}: the port is open, .*; check the address"
    ):
        contact.reach("gpu01", "127.0.0.1", Connection(), login)
