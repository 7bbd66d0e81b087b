"""Acceptance on real nodes without GPUs: each refusal, time-out, crash and lost answer is one clear line."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from gpuprov_lab import Lab, Node
from tests.lab.command_line import gpuprov, start
from tests.lab.marks import slow_ones
from tests.lab.stub_gpus import feel, install

HANGS_S = 60
"""Seconds that the program gives a GPU for its first answer."""
DEATHS = slow_ones([signal.SIGKILL, signal.SIGINT], [signal.SIGINT])


@pytest.fixture(scope="module")
def bare(module_lab: Lab) -> Node:
    [node] = module_lab.up(1, os="debian12", names=["bare"])
    return node


@pytest.fixture(scope="module")
def node(module_lab: Lab) -> Node:
    """A node on which stub GPUs are installed."""
    [node] = module_lab.up(1, os="debian12", names=["gpus"])
    install(node)
    return node


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def way(*nodes: Node) -> list[str]:
    """Return the arguments that address nodes without a lock."""
    [place] = {node.lab_folder for node in nodes}
    stated = ["-i", str(place / "id_ed25519"), "--known-hosts", str(place / "known_hosts")]
    return [*(f"root@{node.address}" for node in nodes), *stated]


def accept(folder: Path, code: int, *words: str) -> list[str]:
    """Return the output lines about the nodes."""
    return gpuprov(folder, "accept", *words, code=code).stdout.splitlines()


def ours(node: Node) -> list[str]:
    """Return the process ids of gpuprov's processes on the node, without those of this query."""
    return node.run("pgrep -f '[z]lib.decompress' || true").stdout.split()


def quiet(node: Node, seconds: float = 20.0) -> bool:
    """Return whether all of gpuprov's processes on the node end in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not ours(node):
            return True
        time.sleep(0.5)
    return False


def test_a_node_without_a_driver(bare: Node, folder: Path) -> None:
    [line] = accept(folder, 1, *way(bare))
    assert line == (
        f"root@{bare.address}: failed: libnvidia-ml.so.1 cannot be loaded; run `gpuprov doctor` on it"
    )
    assert ours(bare) == []


def test_a_node_out_of_reach(bare: Node, folder: Path) -> None:
    [line] = accept(folder, 4, *[word.replace(bare.address, f"{bare.address}:2222") for word in way(bare)])
    assert "no SSH on port 2222: connection refused" in line


@pytest.mark.parametrize(
    ("feeling", "code", "said"),
    [
        ("none", 1, "failed: no GPU answers; run `gpuprov doctor` on it"),
        (
            "used",
            5,
            "refused: GPUs are in use: GPU 0: pid 4711 (900 MiB); wait for those programs, or end them",
        ),
        ("mig", 5, "refused: MIG is on: GPUs in parts are not measured; switch MIG off first"),
        ("nvml-crashes", 1, "failed: it ended by itself (signal 11); run `gpuprov doctor` on it"),
    ],
)
def test_nothing_is_loaded(feeling: str, code: int, said: str, node: Node, folder: Path) -> None:
    feel(node, feeling)
    [line] = accept(folder, code, *way(node))
    assert line == f"root@{node.address}: {said}"
    assert ours(node) == []


def test_a_program_that_starts_during_the_load(node: Node, folder: Path) -> None:
    feel(node, "used-later")
    [line] = accept(folder, 5, *way(node))
    assert line.startswith(f"root@{node.address}: refused: GPUs are in use: GPU 0: pid 4711 (900 MiB);")
    assert ours(node) == []


def test_a_scheduler_that_may_start_jobs(node: Node, folder: Path) -> None:
    feel(node, "sound")
    node.run("cp /bin/sleep /run/slurmd && (setsid /run/slurmd 600 >/dev/null 2>&1 &)")
    try:
        [line] = accept(folder, 5, *way(node))
        drained = accept(folder, 1, *way(node), "--drained")
    finally:
        node.run("pkill -x slurmd")
    assert line.endswith("refused: Slurm may start jobs here; drain the node there, then give --drained")
    assert "rejected" in drained[0]


@pytest.mark.parametrize(
    ("feeling", "said"),
    [
        ("cuda-absent", "GPU 0: cuInit: CUDA_ERROR_NO_DEVICE (as this test has it)"),
        ("cuda-crashes", "GPU 0: it ended by itself (signal 11)"),
        ("cuda-hangs", f"GPU 0: no answer in {HANGS_S} s: the GPU or its driver hangs"),
    ],
)
def test_a_gpu_that_does_not_come_to_its_end_is_rejected(
    feeling: str, said: str, node: Node, folder: Path
) -> None:
    feel(node, feeling)
    begun = time.monotonic()
    first, *others = accept(folder, 1, *way(node))
    assert time.monotonic() - begun < HANGS_S + 60
    assert first.startswith(f"root@{node.address}: rejected (1 x ")
    assert f"  bad   {said}  [device.error]" in others
    assert ours(node) == []


def test_a_driver_that_hangs_at_the_first_look(node: Node, folder: Path) -> None:
    feel(node, "nvml-hangs")
    [line] = accept(folder, 1, *way(node))
    assert f"failed: no answer in {HANGS_S} s: the GPU or its driver hangs" in line
    assert ours(node) == []


def test_an_answer_that_is_lost(node: Node, folder: Path) -> None:
    feel(node, "cuda-hangs")
    running = start(folder, "accept", *way(node))
    wait_for(node, running.poll)
    node.run("pkill -9 -f '[z]lib.decompress'")
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 1
    [line] = out.splitlines()
    assert line.startswith(f"root@{node.address}: failed: no answer from the probe")
    assert quiet(node)


@pytest.mark.parametrize("death", DEATHS)
def test_a_controller_that_dies_leaves_no_process_behind(
    death: signal.Signals, node: Node, folder: Path
) -> None:
    feel(node, "cuda-hangs")
    running = start(folder, "accept", *way(node))
    wait_for(node, running.poll)
    os.kill(running.pid, death)
    running.communicate(timeout=60)
    assert quiet(node)


def test_between_nodes_each_refusal_is_its_own_line(node: Node, bare: Node, folder: Path) -> None:
    feel(node, "used")
    lines = accept(folder, 1, *way(bare, node), "--across")
    assert lines == [
        f"root@{bare.address}: libnvidia-ml.so.1 cannot be loaded; run `gpuprov doctor` on it",
        f"root@{node.address}: GPUs are in use: GPU 0: pid 4711 (900 MiB);"
        " wait for those programs, or end them",
    ]
    assert quiet(node)
    assert quiet(bare)


def test_between_nodes_a_gpu_that_hangs_is_named(node: Node, folder: Path) -> None:
    """Name the crashed GPU: one address is given twice, so two programs use the same GPU of one node."""
    feel(node, "cuda-crashes")
    words = way(node)
    lines = accept(folder, 1, words[0], words[0].replace("root@", ""), *words[1:], "--across")
    assert any("it ended by itself (signal 11)" in line for line in lines)
    assert quiet(node)


@pytest.mark.parametrize("death", DEATHS)
def test_between_nodes_a_controller_that_dies_leaves_no_process_behind(
    death: signal.Signals, node: Node, folder: Path
) -> None:
    feel(node, "cuda-hangs")
    words = way(node)
    running = start(folder, "accept", words[0], words[0].replace("root@", ""), *words[1:], "--across")
    wait_for(node, running.poll)
    os.kill(running.pid, death)
    running.communicate(timeout=60)
    assert quiet(node)


def wait_for(node: Node, over: object) -> None:
    """Wait until the GPU's own process runs on the node."""
    until = time.monotonic() + 60
    while len(ours(node)) < 3:
        assert time.monotonic() < until
        time.sleep(0.3)
