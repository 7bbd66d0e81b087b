"""Export of the lock's nodes to schedulers, from the lock and from the nodes' answers."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest
import yaml

from gpuprov.catalog import load
from gpuprov.cli.common.group import run
from gpuprov.errors import NodeFailed
from gpuprov.inventory.exports import gather
from gpuprov.inventory.exports.gather import locked_nodes, observed
from gpuprov.model.lock import read_lock, write_lock
from gpuprov.probe.facts import Facts
from gpuprov.probe.parse.mig import parse_mig_instances
from gpuprov.ssh.contained import contained
from gpuprov.ssh.transport import Session, Target
from gpuprov.topology import Topology, parse_topology
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
    """Return the path of a lock for the fleet."""
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
    ],
)  # fmt: skip
def test_by_the_lock_alone(lock: Path, capsys: pytest.CaptureFixture[str], form: str, text: str) -> None:
    assert run(["inventory", "export", form, "--lock", str(lock)]) == 0
    assert capsys.readouterr().out == text


def test_slurm_by_the_lock_alone(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inventory", "export", "slurm", "--lock", str(lock)]) == 0
    nodes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("NodeName=")]
    driver = read_lock(lock).groups["train"].components.driver
    assert nodes[0].startswith(
        f"NodeName=gpu[01-02] Gres=gpu:h200:4 Feature=h200,driver-{driver.branch},driver-"
    )
    assert nodes[1].startswith("NodeName=l1 NodeAddr=10.0.0.9 Gres=gpu:l4:1 Feature=l4,driver-")


def test_slurm_writes_all_its_files(lock: Path, tmp_path: Path) -> None:
    assert run(["inventory", "export", "slurm", "--out", str(tmp_path / "slurm"), "--lock", str(lock)]) == 0
    written = {
        str(path.relative_to(tmp_path / "slurm"))
        for path in (tmp_path / "slurm").rglob("*")
        if path.is_file()
    }
    programs = {"prolog.d/50-gpuprov", "epilog.d/50-gpuprov"}
    assert written == {
        "gpuprov.conf", "gres.conf", "cgroup.conf", "slurmd.service.d/gpuprov.conf", *programs,
    }  # fmt: skip
    for path in written:
        runs = os.access(tmp_path / "slurm" / path, os.X_OK)
        assert runs == (path in programs), path


def test_places_are_those_of_the_fleet(locked: MakeLock) -> None:
    fleet = locked(FLEET + "racks: {b7: 'gpu[01-02]', b8: l1}\nnvlink_domains: {d1: 'gpu[01-02]'}\n")
    first, _, last = locked_nodes(fleet, ["gpu01", "gpu02", "l1"], load())
    assert first.places == {"rack": "b7", "nvlink_domain": "d1"}
    assert last.places == {"rack": "b8"}


def partitioned(raw: dict[str, Any]) -> None:
    """Change facts to those of a node whose second GPU has two MIG instances."""
    text = (H200 / "q.xml").read_text()
    whole = re.findall(r"<current_mig>\w+</current_mig>", text)
    assert len(whole) == 4
    parts = text.split(whole[0])
    text = parts[0] + whole[0] + parts[1] + "<current_mig>Enabled</current_mig>" + whole[0].join(parts[2:])
    rows = "".join(f"|   1  MIG 3g.71gb          9        {n}          0:4     |\n" for n in (1, 2))
    folder = "/proc/driver/nvidia/capabilities/gpu1/mig"
    files = {f"{folder}/gi1/access": 147, f"{folder}/gi1/ci0/access": 148}
    files |= {f"{folder}/gi2/access": 156, f"{folder}/gi2/ci0/access": 157}
    said = {path: f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n" for path, minor in files.items()}
    raw |= {"smi": {"rc": 0, "stdout": text, "stderr": ""}, "mig": {"text": rows, "capabilities": said}}


def test_mig_instances_have_the_files_that_the_driver_lists(locked: MakeLock) -> None:
    [node] = locked_nodes(locked(FLEET), ["gpu01"], load())
    whole = observed(node, simulated("h200x4", partitioned), parse_topology(MATRIX))
    assert whole.partitioned == {1}
    caps = "/dev/nvidia-caps/nvidia-cap"
    assert [each.files for each in whole.slices] == [
        ("/dev/nvidia1", f"{caps}147", f"{caps}148"),
        ("/dev/nvidia1", f"{caps}156", f"{caps}157"),
    ]


@pytest.mark.parametrize("lost", ["gi1/access", "gi2/ci0/access"])
def test_a_mig_instance_without_its_files_fails_its_node(locked: MakeLock, lost: str) -> None:
    def change(raw: dict[str, Any]) -> None:
        partitioned(raw)
        del raw["mig"]["capabilities"][f"/proc/driver/nvidia/capabilities/gpu1/mig/{lost}"]

    [node] = locked_nodes(locked(FLEET), ["gpu01"], load())
    with pytest.raises(NodeFailed, match=r"MIG 3g\.71gb of GPU 1"):
        observed(node, simulated("h200x4", change), parse_topology(MATRIX))


def answering(monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, tuple[Facts, Topology | None]]) -> None:
    """Let nodes answer with these facts and topologies."""

    def fan_out(nodes: list[Target], visit: Any, **_: Any) -> Iterator[tuple[Target, Any]]:
        for node in nodes:
            session = Session(node, gather.LIMITS)
            yield node, contained(node.name, partial(visit, session))

    monkeypatch.setattr(gather, "fan_out", fan_out)
    monkeypatch.setattr(gather, "ask", lambda session, _: answers[session.target.name][0])
    monkeypatch.setattr(gather, "topology_of", lambda session: answers[session.target.name][1])


def test_facts_of_a_node_are_not_kept_for_the_export(
    locked: MakeLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep none: a node's facts can have many times the size of what is exported."""
    facts: WeakValueDictionary[str, Facts] = WeakValueDictionary()

    class Answers(dict[str, tuple[Facts, Topology | None]]):
        def __missing__(self, name: str) -> tuple[Facts, Topology | None]:
            facts[name] = made = simulated("h200x4", name=name)
            return made, None

    answering(monkeypatch, Answers())
    found = gather.live_nodes(locked(FLEET), ["gpu01", "gpu02"], load())
    first, _ = next(found)  # all have answered
    gc.collect()
    assert len(facts) == 0
    [(second, _)] = found
    assert (first.cpus, second.cpus) == (96, 96)


def test_one_node_does_not_end_the_export_of_all(
    lock: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(raw: dict[str, Any]) -> None:
        partitioned(raw)
        raw["mig"]["text"] = ""

    matrix = parse_topology(MATRIX)
    answers = {"gpu01": (simulated("h200x4", change), matrix), "gpu02": (simulated("h200x4"), matrix)}
    answering(monkeypatch, answers)
    for form in ("slurm", "gres"):
        assert run(["inventory", "export", form, "train", "--live", "--lock", str(lock)]) == 1
        out, err = capsys.readouterr()
        assert "gpu01: exported as down and without GPUs" in err
        assert "NodeName=gpu02 " in out
        assert ("gpu01" in out) is (form == "slurm")


def repeated(raw: dict[str, Any]) -> None:
    """Change facts to those of a node that lists a fifth GPU, with the instances and device file of the
    second one, which has no instances.
    """
    partitioned(raw)
    text = raw["smi"]["stdout"]
    fifth = "<gpu id" + text.split("<gpu id")[2].rpartition("</gpu>")[0] + "</gpu>\n</nvidia_smi_log>"
    text = text.replace("<current_mig>Enabled<", "<current_mig>Disabled<")
    raw["smi"]["stdout"] = text.replace("</nvidia_smi_log>", fifth)


def test_a_node_that_lists_a_gpu_twice_does_not_end_the_export(
    lock: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix = parse_topology(MATRIX)
    answers = {"gpu01": (simulated("h200x4", repeated), matrix), "gpu02": (simulated("h200x4"), matrix)}
    answering(monkeypatch, answers)
    for form in ("slurm", "gres"):
        assert run(["inventory", "export", form, "train", "--live", "--lock", str(lock)]) == 0
        assert "gpu[01-02] " in capsys.readouterr().out


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
    answering(monkeypatch, answers)
    (bad, why), (good, well) = gather.live_nodes(fleet, ["gpu01", "gpu02"], load())
    assert (bad.name, bad.cpus) == ("gpu01", 0)
    assert "the list of processors is '0-999999999'" in str(why)
    assert (good.name, good.cpus, well) == ("gpu02", 96, None)


def test_a_nodes_own_word_counts_processors_and_cores_near_gpus(locked: MakeLock) -> None:
    [node] = locked_nodes(locked(FLEET), ["gpu01"], load())
    whole = observed(node, simulated("h200x4"), parse_topology(MATRIX))
    assert (whole.cpus, whole.sockets, whole.threads_per_core) == (96, 2, 1)
    assert (whole.gpus, whole.model, len(whole.gpu_cores)) == (4, "NVIDIA H200", 4)
    assert whole.labels["driver"] == node.labels["driver"] != ""
    assert (whole.nvml, whole.partitioned) == (None, frozenset())
    assert observed(node, simulated("h200x4"), None).gpu_cores == ()


def test_a_node_lists_at_most_as_many_instances_as_slurm_takes() -> None:
    rows = "".join(f"|   0  MIG 1g.5gb  19  {number}  0:1  |\n" for number in range(2000))
    assert len(parse_mig_instances(rows, {}, {0: 0})) == 1024
