"""Export formats for schedulers: exact text, folded, and parsed again where a parser is installed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuprov.errors import InvalidInput, NodeFailed
from gpuprov.inventory.exports import (
    Access,
    Node,
    Slice,
    core_indexes,
    dstack,
    gres_conf,
    hostfile,
    ray,
    shortcoming,
    skypilot,
    slurm_conf,
    slurm_cores,
    slurm_files,
    topology_conf,
)
from gpuprov.inventory.exports.node import numbers, ranges, short_model

KEYS = (
    "GresTypes=gpu\nSelectType=select/cons_tres\nProctrackType=proctrack/cgroup\n"
    "TaskPlugin=task/cgroup,task/affinity\n"
)
KEYS_OF_NODES = {
    *("NodeName", "CPUs", "Sockets", "CoresPerSocket", "ThreadsPerCore"),
    *("RealMemory", "Gres", "Feature", "State"),
}
CORES = ("0-47",) * 4 + ("48-95",) * 4


def node(number: int, **more: object) -> Node:
    """Return a node with eight H200 and a number in its name, with other values if stated."""
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
    """Check the lines of slurm.conf, with equal nodes folded."""
    labels = {"driver": "580.95.05", "cuda": "12.8 13.0"}
    assert slurm_conf([node(1, labels=labels), node(2, labels=labels), node(3, gpus=0)]) == (
        f"{KEYS}"
        "NodeName=gpu[01-02] CPUs=192 Sockets=2 CoresPerSocket=48 ThreadsPerCore=2 RealMemory=1960000 "
        "Gres=gpu:h200:8 Feature=h200,driver-580,driver-580.95.05,cuda-12.8,cuda-13.0 State=UNKNOWN\n"
        "NodeName=gpu03 CPUs=192 Sockets=2 CoresPerSocket=48 ThreadsPerCore=2 RealMemory=1960000 "
        "State=UNKNOWN\n"
    )


def test_gres_by_minor_numbers_that_rise() -> None:
    crossed = node(1, gpus=4, gpu_minors=(2, 3, 0, 1), gpu_cores=("0-7", "0-7", "8-15", "8-15"))
    assert gres_conf([crossed]) == (
        "NodeName=gpu01 Name=gpu Type=h200 File=/dev/nvidia[0-1] Cores=8-15\n"
        "NodeName=gpu01 Name=gpu Type=h200 File=/dev/nvidia[2-3] Cores=0-7\n"
    )


def sliced() -> Node:
    """Return a node with one whole GPU and one with two MIG instances."""
    cap = "/dev/nvidia-caps/nvidia-cap"
    files = [("/dev/nvidia1", f"{cap}{first}", f"{cap}{first + 1}") for first in (21, 30)]
    slices = tuple(Slice(1, "3g.71gb", each) for each in files)
    return node(1, gpus=2, gpu_cores=("0-7", "8-15"), partitioned=frozenset({1}), slices=slices)


def test_mig_instances_are_devices_of_several_files() -> None:
    assert gres_conf([sliced()]) == (
        "NodeName=gpu01 Name=gpu Type=h200 File=/dev/nvidia0 Cores=0-7\n"
        "NodeName=gpu01 Name=gpu Type=h200_3g.71gb MultipleFiles=/dev/nvidia1,/dev/nvidia-caps/nvidia-cap21,"
        "/dev/nvidia-caps/nvidia-cap22 Cores=8-15\n"
        "NodeName=gpu01 Name=gpu Type=h200_3g.71gb MultipleFiles=/dev/nvidia1,/dev/nvidia-caps/nvidia-cap30,"
        "/dev/nvidia-caps/nvidia-cap31 Cores=8-15\n"
    )
    assert " Gres=gpu:h200:1,gpu:h200_3g.71gb:2 " in slurm_conf([sliced()])


@pytest.mark.parametrize("profile", ["3g;Gres=gpu:9", "x,y:1", "\u202e[0-9]", "a=b#"])
def test_a_profile_of_a_node_adds_no_key_to_slurms_files(profile: str) -> None:
    hostile = replace(sliced(), slices=(replace(sliced().slices[0], profile=profile),))
    kinds = re.findall(r"Type=(\S+) MultipleFiles=", gres_conf([hostile]))
    assert [re.fullmatch(r"h200_[a-z0-9._-]+", kind) is not None for kind in kinds] == [True]
    assert set(re.findall(r"(\w+)=", slurm_conf([hostile]).splitlines()[-1])) <= KEYS_OF_NODES


@pytest.mark.parametrize("partitioned", [None, frozenset({0})])
def test_mig_without_its_instances_is_down_and_the_others_are_exported(
    partitioned: frozenset[int] | None,
) -> None:
    nodes = [node(1), node(2, partitioned=partitioned), node(3)]
    assert gres_conf(nodes) == gres_conf([node(1), node(3)])
    good, bad = slurm_conf(nodes).splitlines()[-2:]
    assert good.startswith("NodeName=gpu[01,03] ")
    assert " Gres=gpu:h200:8 " in good
    assert bad.startswith("NodeName=gpu02 ")
    assert bad.endswith(" State=DOWN")
    assert "Gres" not in bad
    assert "the device files of its MIG instances are not known" in str(shortcoming(nodes[1]))
    assert shortcoming(nodes[0]) is None


@pytest.mark.parametrize("unknown", [None, False])
def test_a_node_without_the_plugin_for_nvml_keeps_its_device_files(unknown: bool | None) -> None:
    nodes = [node(1, nvml=True), node(2, nvml=unknown), node(3, gpus=0)]
    assert gres_conf([nodes[0], nodes[2]], nvml=True) == "AutoDetect=nvml\n"
    assert gres_conf(nodes, nvml=True) == (
        "AutoDetect=nvml\n"
        "NodeName=gpu02 AutoDetect=off Name=gpu Type=h200 File=/dev/nvidia[0-3] Cores=0-47\n"
        "NodeName=gpu02 AutoDetect=off Name=gpu Type=h200 File=/dev/nvidia[4-7] Cores=48-95\n"
    )
    assert [shortcoming(each, nvml=True) is None for each in nodes] == [True, False, True]
    assert shortcoming(nodes[1]) is None
    closed = replace(nodes[1], partitioned=None)
    assert gres_conf([closed], nvml=True) == "AutoDetect=nvml\nNodeName=gpu02 AutoDetect=off\n"


def placed(*stated: str) -> list[Node]:
    """Return nodes with places, stated as `rack/domain`; either may be empty."""
    return [
        node(
            number,
            places={k: v for k, v in zip(("rack", "nvlink_domain"), each.split("/"), strict=True) if v},
        )
        for number, each in enumerate(stated, 1)
    ]


def test_topology_of_racks() -> None:
    """Check topology.conf with a switch for each rack, "" without racks."""
    assert topology_conf([node(1)]) == ""
    assert topology_conf(placed("r1/", "r1/")) == "SwitchName=r1 Nodes=gpu[01-02]\n"
    assert topology_conf(placed("r1/", "r2/", "r1/")) == (
        "SwitchName=r1 Nodes=gpu[01,03]\nSwitchName=r2 Nodes=gpu02\nSwitchName=gpuprov_root Switches=r[1-2]\n"
    )


def test_topology_of_nvlink_domains_in_racks() -> None:
    assert topology_conf(placed("r1/d1", "r1/d2", "r2/d3", "r3/")) == (
        "SwitchName=d1 Nodes=gpu01\nSwitchName=d2 Nodes=gpu02\nSwitchName=d3 Nodes=gpu03\n"
        "SwitchName=r3 Nodes=gpu04\n"
        "SwitchName=r1 Switches=d[1-2]\nSwitchName=r2 Switches=d3\n"
        "SwitchName=gpuprov_root Switches=r[1-3]\n"
    )
    assert topology_conf(placed("r1/d", "r2/d")) == "SwitchName=d Nodes=gpu[01-02]\n", "a domain of two racks"
    assert topology_conf(placed("a/a", "a/a")) == "SwitchName=a Nodes=gpu[01-02]\n", "both of one name"


def test_topology_of_blocks() -> None:
    """Check topology.conf with a block for each NVLink domain."""
    assert topology_conf(placed("/d1", "/d1", "/d2", "/d2", "/d2"), "block") == (
        "BlockName=d1 Nodes=gpu[01-02]\nBlockName=d2 Nodes=gpu[03-05]\nBlockSizes=2\n"
    )


@pytest.mark.parametrize(("shape", "key"), [("tree", "racks"), ("block", "nvlink_domains")])
def test_topology_of_some_nodes_is_refused(shape: str, key: str) -> None:
    with pytest.raises(InvalidInput, match=rf"gpu02 is in no place of fleet\.yml's {key}"):
        topology_conf(placed("r1/d1", "/"), shape)  # type: ignore[arg-type]


def test_files_of_a_site() -> None:
    files = slurm_files(placed("r1/", "r1/"))
    assert set(files) == {
        "gpuprov.conf", "gres.conf", "cgroup.conf", "topology.conf", "slurmd.service.d/gpuprov.conf",
        "prolog.d/50-gpuprov", "epilog.d/50-gpuprov",
    }  # fmt: skip
    assert "\nTopologyPlugin=topology/tree\n" in files["gpuprov.conf"]
    assert "\nConstrainDevices=yes\n" in files["cgroup.conf"]
    assert set(slurm_files([node(1)])) == set(files) - {"topology.conf"}
    assert "TopologyPlugin" not in slurm_files([node(1)])["gpuprov.conf"]


def test_slurm_addresses_are_folded_where_they_keep_their_order() -> None:
    in_order = [node(number, address=f"10.0.0.{number}") for number in (1, 2, 3)]
    assert "NodeName=gpu[01-03] NodeAddr=10.0.0.[1-3] " in slurm_conf(in_order)
    crossed = [node(1, address="10.0.0.2"), node(2, address="10.0.0.1")]
    assert "NodeName=gpu01 NodeAddr=10.0.0.2 " in slurm_conf(crossed)


def places(sockets: int, cores: int, threads: int, order: str) -> dict[int, tuple[int, int]]:
    """Return processor → socket and core, in one of the orders in which firmware numbers processors."""
    listed = {
        "threads-last": [(s, c) for _ in range(threads) for s in range(sockets) for c in range(cores)],
        "siblings": [(s, c) for s in range(sockets) for c in range(cores) for _ in range(threads)],
        "alternating": [(s, c) for _ in range(threads) for c in range(cores) for s in range(sockets)],
    }[order]
    return dict(enumerate(listed))


@pytest.mark.parametrize(
    ("order", "first", "second"),
    [
        ("threads-last", "0-3,8-11", "4-7,12-15"),
        ("siblings", "0-7", "8-15"),
        ("alternating", "0,2,4,6,8,10,12,14", "1,3,5,7,9,11,13,15"),
    ],
)
def test_slurm_counts_cores_socket_by_socket(order: str, first: str, second: str) -> None:
    cores = core_indexes(places(2, 4, 2, order))
    assert (slurm_cores(first, cores), slurm_cores(second, cores)) == ("0-3", "4-7")


def test_no_cores_near_a_gpu_without_the_places_of_all_processors() -> None:
    assert slurm_cores("0-3", {0: 0, 1: 1}) == ""


def test_hostfiles() -> None:
    """Check the hostfiles of Open MPI and MPICH, without nodes that have no GPU."""
    nodes = [node(1), node(2, address="10.0.0.2", gpus=4), node(3, gpus=0)]
    assert hostfile(nodes) == "gpu01 slots=8\n10.0.0.2 slots=4\n"
    assert hostfile(nodes, "mpich") == "gpu01:8\n10.0.0.2:4\n"


def test_ray_has_a_head_and_workers() -> None:
    access = Access("ubuntu", 22, "~/.ssh/id")
    nodes = [node(1), node(2, address="10.0.0.2"), node(3, address="10.0.0.3")]
    own = {"gpu03": Access("ubuntu", 2222, "~/.ssh/id")}
    assert yaml.safe_load(ray("train", nodes, access, own)) == {
        "cluster_name": "train",
        "provider": {"type": "local", "head_ip": "gpu01", "worker_ips": ["10.0.0.2", "gpu03"]},
        "auth": {"ssh_user": "ubuntu", "ssh_private_key": "~/.ssh/id"},
    }
    assert yaml.safe_load(ray("one", [node(1)], Access("ops")))["auth"] == {"ssh_user": "ops"}


def test_ray_has_one_user_for_all_nodes() -> None:
    with pytest.raises(InvalidInput, match="gpu02 has another SSH user or key"):
        ray("train", [node(1), node(2)], Access("ubuntu"), {"gpu02": Access("ops")})
    with pytest.raises(InvalidInput, match="no nodes"):
        ray("train", [], Access("ubuntu"))


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
    """Check the pool of SkyPilot with user, key and hosts."""
    nodes = [node(1, address="10.0.0.1")]
    pool = yaml.safe_load(skypilot("train", nodes, Access("ubuntu", identity_file="~/.ssh/id")))
    assert pool == {"train": {"user": "ubuntu", "identity_file": "~/.ssh/id", "hosts": ["10.0.0.1"]}}
    assert yaml.safe_load(skypilot("train", nodes, Access("ubuntu", 2222)))["train"]["hosts"] == ["gpu01"]


def test_models_as_words() -> None:
    """Check the short word for a GPU model."""
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
