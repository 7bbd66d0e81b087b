"""Workers: the command line overrides the lock, and their libraries are imported only where needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuprov.cli.common.options import Chosen, _controllers
from gpuprov.model.fleet import parse_fleet
from gpuprov.model.lock import read_lock, render_lock, write_lock
from tests import RECORDED_LOCK
from tests.lab.command_line import gpuprov

FLEET = "groups: {g: {profile: hgx-a100-4, hosts: a1, os: debian12}}\n"
PLAIN = "tcp://192.0.2.1:8786"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """Return the path of the recorded lock with workers that use no TLS."""
    path = tmp_path / "fleet.lock.yml"
    write_lock(read_lock(RECORDED_LOCK).model_copy(update={"controllers": PLAIN}), path)
    return path


def test_a_fleet_and_a_lock_that_state_no_workers_are_written_as_ever() -> None:
    assert "controllers" not in render_lock(read_lock(RECORDED_LOCK))
    assert "controllers" not in parse_fleet(FLEET, "f").model_dump_json()
    assert '"controllers":"local:2"' in parse_fleet(FLEET + "controllers: local:2\n", "f").model_dump_json()


def test_the_lock_names_workers_unless_the_command_line_does(lock: Path) -> None:
    assert PLAIN in gpuprov(lock.parent, "drift", code=5).stderr
    assert "192.0.2.2" in gpuprov(lock.parent, "drift", "--workers", "tcp://192.0.2.2:1", code=5).stderr
    done = gpuprov(lock.parent, "drift", "--workers", "none", code=4)
    assert "connection refused" in done.stdout


def test_a_lock_does_not_start_more_workers_than_there_are_processors(lock: Path) -> None:
    """Another person may have written the lock: each worker takes 65 MB and a second."""
    for stated, expected in (
        ("local:999", f"local:{os.cpu_count()}"),
        ("local:1", "local:1"),
        ("local", "local"),
    ):
        write_lock(read_lock(RECORDED_LOCK).model_copy(update={"controllers": stated}), lock)
        assert _controllers(Chosen(lock, (), forks=1)) == expected


def test_a_machine_that_is_the_node_has_no_workers(lock: Path) -> None:
    done = gpuprov(lock.parent, "drift", "--local", "--workers", "local:1", code=2)
    assert "workers cannot reach this machine as a node; leave out --workers" in done.stderr


def test_without_workers_nothing_of_dask_is_loaded() -> None:
    asked = (
        "import sys; from gpuprov.drift import survey; from gpuprov.apply import exclusive;"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "gpuprov.ssh.dispatch" in loaded
    assert not {each for each in loaded if each.split(".")[0] in ("dask", "distributed", "cloudpickle")}


def test_without_the_extra_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuprov.errors import InvalidInput
    from gpuprov.ssh.workers import hire

    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(
            InvalidInput,
            match=r"^--workers needs Dask; pip install --only-binary=:all: 'distributed>=2025\.1'$",
        ),
        hire("local", {}),
    ):
        pass


@pytest.mark.thorough
def test_acceptance_by_workers_is_the_same_and_between_nodes_it_is_refused(tmp_path: Path) -> None:
    nodes = ("root@127.0.0.1:1", "root@127.0.0.1:2")
    by = ("--workers", "local:1")
    assert (
        gpuprov(tmp_path, "accept", *nodes, *by, code=4).stdout
        == gpuprov(tmp_path, "accept", *nodes, code=4).stdout
    )
    said = gpuprov(tmp_path, "accept", "--across", *nodes, *by, code=2).stderr
    assert said.startswith("gpuprov: --across with --workers; expected")
    assert said.endswith("--workers none\n")
