"""Export formats for schedulers: exact text, folded, and parsed again where a parser is installed."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuprov.errors import NodeFailed
from gpuprov.inventory.exports import (
    Access,
    Node,
    dstack,
    gres_conf,
    hostfile,
    kubernetes_labels,
    skypilot,
    slurm_conf,
    slurm_cores,
)
from gpuprov.inventory.exports.node import numbers, ranges, short_model

CORES = ("0-47",) * 4 + ("48-95",) * 4


def node(number: int, **more: object) -> Node:
    name = f"gpu{number:02}"
    known: dict[str, object] = {"name": name, "address": name, "gpus": 8, "model": "NVIDIA H200"}
    known |= {"cpus": 192, "memory_mib": 2_000_000, "gpu_memory_mib": 143_771, "gpu_cores": CORES}
    known |= {"sockets": 2, "cores_per_socket": 48, "threads_per_core": 2}
    return Node(**{**known, **more})  # type: ignore[arg-type]


def test_gres_of_alike_nodes_is_folded() -> None:
    assert gres_conf(node(number) for number in range(1, 9)) == (
        "NodeName=gpu[01-08] Name=gpu Type=h200 File=/dev/nvidia[0-3] Cores=0-47\n"
        "NodeName=gpu[01-08] Name=gpu Type=h200 File=/dev/nvidia[4-7] Cores=48-95\n"
    )


def test_gres_without_cores_and_of_one_gpu() -> None:
    nodes = [node(1, gpu_cores=()), node(2, gpus=1, gpu_cores=("0-7",)), node(3, gpus=0)]
    assert gres_conf(nodes) == (
        "NodeName=gpu01 Name=gpu Type=h200 File=/dev/nvidia[0-7]\n"
        "NodeName=gpu02 Name=gpu Type=h200 File=/dev/nvidia0 Cores=0-7\n"
    )


def test_slurm_conf() -> None:
    assert slurm_conf([node(1), node(2), node(3, gpus=4, model="NVIDIA A100-SXM4-80GB")]) == (
        "GresTypes=gpu\n"
        "NodeName=gpu[01-02] CPUs=192 Sockets=2 CoresPerSocket=48 ThreadsPerCore=2 RealMemory=2000000 "
        "Gres=gpu:h200:8 State=UNKNOWN\n"
        "NodeName=gpu03 CPUs=192 Sockets=2 CoresPerSocket=48 ThreadsPerCore=2 RealMemory=2000000 "
        "Gres=gpu:a100-sxm4-80gb:4 State=UNKNOWN\n"
    )


def test_slurm_addresses_are_folded_where_they_keep_their_order() -> None:
    in_order = [node(number, address=f"10.0.0.{number}") for number in (1, 2, 3)]
    assert "NodeName=gpu[01-03] NodeAddr=10.0.0.[1-3] " in slurm_conf(in_order)
    crossed = [node(1, address="10.0.0.2"), node(2, address="10.0.0.1")]
    assert "NodeName=gpu01 NodeAddr=10.0.0.2 " in slurm_conf(crossed)


def test_slurm_counts_cores_not_threads() -> None:
    assert slurm_cores("0-47,96-143", 2, 48) == "0-47"
    assert slurm_cores("48-95,144-191", 2, 48) == "48-95"


def test_hostfiles() -> None:
    nodes = [node(1), node(2, address="10.0.0.2", gpus=4), node(3, gpus=0)]
    assert hostfile(nodes) == "gpu01 slots=8\n10.0.0.2 slots=4\n"
    assert hostfile(nodes, "mpich") == "gpu01:8\n10.0.0.2:4\n"


def test_kubernetes_labels() -> None:
    assert kubernetes_labels([node(1)]) == (
        "kubectl label --overwrite node gpu01 nvidia.com/gpu.present=true nvidia.com/gpu.count=8 "
        "nvidia.com/gpu.product=NVIDIA-H200 nvidia.com/gpu.memory=143771\n"
    )


def test_dstack_behind_a_jump_host() -> None:
    access = Access("ubuntu", 2222, "~/.ssh/id", "ops@jump.example")
    assert yaml.safe_load(dstack("train", [node(1), node(2, address="10.0.0.2")], access)) == {
        "type": "fleet",
        "name": "train",
        "placement": "cluster",
        "ssh_config": {
            "user": "ubuntu",
            "port": 2222,
            "identity_file": "~/.ssh/id",
            "proxy_jump": {"hostname": "jump.example", "user": "ops", "identity_file": "~/.ssh/id"},
            "hosts": ["gpu01", "10.0.0.2"],
        },
    }


def test_skypilot() -> None:
    nodes = [node(1, address="10.0.0.1")]
    pool = yaml.safe_load(skypilot("train", nodes, Access("ubuntu", identity_file="~/.ssh/id")))
    assert pool == {"train": {"user": "ubuntu", "identity_file": "~/.ssh/id", "hosts": ["10.0.0.1"]}}
    assert yaml.safe_load(skypilot("train", nodes, Access("ubuntu", 2222)))["train"]["hosts"] == ["gpu01"]


def test_models_as_words() -> None:
    words = ["NVIDIA H200", "Tesla T4", "NVIDIA GeForce RTX 3080", "NVIDIA A100-SXM4-80GB", "  "]
    assert [short_model(word) for word in words] == [
        "h200",
        "t4",
        "geforce_rtx_3080",
        "a100-sxm4-80gb",
        "gpu",
    ]


@pytest.mark.parametrize(
    "text", ["0-999999999", "8192", "9-1", "0-8191,0", "x", "1-2-3", "-5", "1.5", "٣", "0-"]
)
def test_processors_that_no_node_has(text: str) -> None:
    """Refuse impossible lists, which come from the node: expanding the first one would take 36 GB."""
    with pytest.raises(NodeFailed, match="the list of processors is"):
        numbers(text)


def test_as_many_processors_as_linux_counts() -> None:
    assert len(numbers("0-8191")) == 8192


@given(st.sets(st.integers(0, 300), min_size=1))
def test_ranges_unfold_to_what_they_folded(values: set[int]) -> None:
    assert numbers(ranges(values)) == sorted(values)
