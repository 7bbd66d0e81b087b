"""Keys that are offered to a node: those of its files, and those of an agent."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from gpuprov.errors import InvalidInput
from gpuprov.model.connection import Connection
from gpuprov.ssh import credentials
from gpuprov.ssh.credentials import Credentials
from gpuprov.ssh.route import Route, route
from tests.unit.ssh.conftest import Configure


def make_key(path: Path) -> paramiko.PKey:
    """Write a new key to a path, and return it."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return paramiko.PKey.from_path(path)


@pytest.fixture
def way(tmp_path: Path, configure: Configure, monkeypatch: pytest.MonkeyPatch) -> Route:
    """Route with one key file; an agent has this key and another one."""
    own, other = make_key(tmp_path / "own"), make_key(tmp_path / "other")
    monkeypatch.setattr(credentials, "_agent_keys", lambda agent: (other, own))
    configure("")
    return replace(route("192.0.2.1", Connection()), identity_files=(str(tmp_path / "own"),))


def offered(way: Route) -> list[tuple[str, bytes]]:
    """Return name and content of each key that is offered on a route."""
    return [(name, key.asbytes()) for name, key in Credentials(way).keys()]  # noqa: SIM118


def test_all_keys_of_the_agent_follow_those_of_files(way: Route, tmp_path: Path) -> None:
    own, other = (paramiko.PKey.from_path(tmp_path / name).asbytes() for name in ("own", "other"))
    assert [key for _, key in offered(way)] == [own, other, own]


def test_identities_only_leaves_out_other_keys_of_the_agent(way: Route, tmp_path: Path) -> None:
    own = paramiko.PKey.from_path(tmp_path / "own").asbytes()
    assert [key for _, key in offered(replace(way, identities_only=True))] == [own, own]


def test_with_a_key_that_the_fleet_names_the_agent_is_not_used(way: Route, tmp_path: Path) -> None:
    stated = Connection(identity_file=str(tmp_path / "own"))
    assert len(offered(replace(way, stated=stated, identities_only=True))) == 1


@pytest.mark.parametrize("end", ["", "-cert.pub"])
def test_a_large_file_is_not_read(way: Route, tmp_path: Path, end: str) -> None:
    """Read a file that the fleet of another person states: a repository can have it as a few bytes."""
    with (tmp_path / f"own{end}").open("a") as file:
        file.truncate(1 << 30)
    with pytest.raises(InvalidInput, match=f"own{end} is empty or larger than 262144 bytes"):
        credentials.private_key(str(tmp_path / "own"))


def test_a_large_certificate_of_the_agent_is_not_read(way: Route, tmp_path: Path) -> None:
    with (tmp_path / "own.pub").open("a") as file:
        file.truncate(1 << 30)
    assert credentials._certificate(str(tmp_path / "own.pub")) is None
