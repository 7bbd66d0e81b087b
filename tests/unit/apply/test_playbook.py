"""What Ansible's process is started with."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply import playbook
from gpuprov.apply.context import RunContext
from gpuprov.apply.leases import Leases
from gpuprov.model.lock import read_lock
from tests import RECORDED_LOCK

TELL = (
    "import json, os, sys; print(json.dumps([os.environ.get('GPUPROV_LEASES'), os.listdir('/proc/self/fd')]))"
)


@pytest.mark.parametrize("leased", [True, False])
def test_ansible_knows_the_runs_leases_and_keeps_the_run_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leased: bool
) -> None:
    lock = read_lock(RECORDED_LOCK)
    leases = Leases([lock], tmp_path) if leased else None
    if leases:
        leases.handle = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(playbook, "_command", lambda *_: [sys.executable, "-c", TELL])
    run = RunContext(lock, tmp_path, leases=leases)
    playbook.run_playbook("site", {name: {} for name in lock.hosts()}, run)
    told: list[Any] = json.loads((tmp_path / "site-ansible.log").read_text())
    assert told[0] == (str(tmp_path / "leases.json") if leased else None)
    if leases:
        assert str(leases.handle) in told[1]
        os.close(leases.handle or -1)


def test_what_ssh_says_of_a_lost_node_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = read_lock(RECORDED_LOCK)
    [name, *_] = lock.hosts()
    event = {
        "event": "task",
        "host": name,
        "status": "unreachable",
        "msg": "Broken pipe\r\nport 22 timed out",
    }
    write = f"open({str(tmp_path / 'site-events.jsonl')!r}, 'w').write({json.dumps(event)!r} + '\\n')"
    monkeypatch.setattr(playbook, "_command", lambda *_: [sys.executable, "-c", write])
    outcomes = playbook.run_playbook("site", {name: {}}, RunContext(lock, tmp_path))
    assert outcomes[name].unreachable == "Broken pipe port 22 timed out"
