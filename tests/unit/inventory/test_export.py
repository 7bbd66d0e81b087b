"""Export of the lock's nodes to schedulers, from the lock and from the nodes' answers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gpuprov.catalog import load
from gpuprov.cli.common.group import run
from gpuprov.inventory.exports import gather
from gpuprov.inventory.exports.gather import locked_nodes, observed
from gpuprov.model.lock import write_lock
from gpuprov.topology import parse_topology
from tests import H200
from tests.unit.inventory.conftest import MakeLock
from tests.unit.inventory.test_discover import simulated

FLEET = """\
groups:
  train: {profile: hgx-h200-4, hosts: 'gpu[01-02]', os: ubuntu24.04, stack: {repository: nvidia}}
  infer: {profile: inference-l4, hosts: {l1: 10.0.0.9}, os: ubuntu24.04}
ssh: {user: ops, port: 2222}
"""
MATRIX = (H200 / "topo-m.txt").read_text()


@pytest.fixture
def lock(tmp_path: Path, locked: MakeLock) -> Path:
    path = tmp_path / "fleet.lock.yml"
    write_lock(locked(FLEET), path)
    return path


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hostfile", "gpu01 slots=4\ngpu02 slots=4\n10.0.0.9 slots=1\n"),
        ("mpich", "gpu01:4\ngpu02:4\n10.0.0.9:1\n"),
        ("gres", "NodeName=gpu[01-02] Name=gpu Type=h200 File=/dev/nvidia[0-3]\n"
                 "NodeName=l1 Name=gpu Type=l4 File=/dev/nvidia0\n"),
        ("slurm", "GresTypes=gpu\nNodeName=gpu[01-02] Gres=gpu:h200:4 State=UNKNOWN\n"
                  "NodeName=l1 NodeAddr=10.0.0.9 Gres=gpu:l4:1 State=UNKNOWN\n"),
    ],
)  # fmt: skip
def test_by_the_lock_alone(lock: Path, capsys: pytest.CaptureFixture[str], form: str, text: str) -> None:
    assert run(["inventory", "export", form, "--lock", str(lock)]) == 0
    assert capsys.readouterr().out == text


def test_pools_know_the_way_in(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inventory", "export", "dstack", "train", "--name", "pool", "--lock", str(lock)]) == 0
    pool = yaml.safe_load(capsys.readouterr().out)
    assert pool["ssh_config"] == {"user": "ops", "port": 2222, "hosts": ["gpu01", "gpu02"]}


def test_a_node_that_lists_what_cannot_be_is_its_own_line(
    locked: MakeLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = locked(FLEET)
    wild = parse_topology(re.sub(r"\b\d+-\d+(,\d+-\d+)*\b", "0-999999999", MATRIX))
    answers = {"gpu01": (simulated("h200x4"), wild), "gpu02": (simulated("h200x4"), parse_topology(MATRIX))}
    monkeypatch.setattr(gather, "fan_out", lambda nodes, *_, **__: [(n, answers[n.name]) for n in nodes])
    (bad, why), (good, well) = gather.live_nodes(fleet, ["gpu01", "gpu02"], load())
    assert (bad.name, bad.cpus) == ("gpu01", 0)
    assert "the list of processors is '0-999999999'" in str(why)
    assert (good.name, good.cpus, well) == ("gpu02", 96, None)


def test_a_nodes_own_word_counts_processors_and_cores_near_gpus(locked: MakeLock) -> None:
    [node] = locked_nodes(locked(FLEET), ["gpu01"], load())
    whole = observed(node, simulated("h200x4"), parse_topology(MATRIX))
    assert (whole.cpus, whole.sockets, whole.threads_per_core) == (96, 2, 1)
    assert (whole.gpus, whole.model, len(whole.gpu_cores)) == (4, "NVIDIA H200", 4)
    assert observed(node, simulated("h200x4"), None).gpu_cores == ()
