"""Launch lines: exact text, which a real shell splits into the intended words."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpuprov.cli.launch import command
from gpuprov.errors import InvalidInput
from gpuprov.model.lock import Setting, read_lock, write_lock
from gpuprov.topology import parse_topology
from gpuprov.topology.launch import Host, Job, affinity_of, docker, horovodrun, mpirun, torchrun
from tests import RECORDED_LOCK

ONE = (Host("gpu01", "gpu01", 8),)
TWO = (Host("gpu01", "10.0.0.1", 8), Host("gpu02", "10.0.0.2", 8))
TRAIN = ("train.py", "--epochs", "3")
TOPOLOGY = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV4\tSYS\tSYS\t0-15\t0
GPU1\tNV4\t X \tSYS\tSYS\t0-15\t0
GPU2\tSYS\tSYS\t X \tNV4\t16-31\t1
GPU3\tSYS\tSYS\tNV4\t X \t16-31\t1
"""
SPLIT = ("0-15", "0-15", "16-31", "16-31")


def only(lines: list[object]) -> str:
    """Return the text of the only line."""
    [line] = lines
    return line.text  # type: ignore[attr-defined, no-any-return]


def test_torchrun_on_one_node() -> None:
    assert only(torchrun(Job(ONE, TRAIN))) == "torchrun --standalone --nproc-per-node=8 train.py --epochs 3"


def test_torchrun_on_two_nodes_has_rank_and_endpoint() -> None:
    lines = torchrun(Job(TWO, TRAIN, {"NCCL_DEBUG": "INFO"}))
    assert [(line.host, line.text) for line in lines] == [
        (
            f"gpu0{rank + 1}",
            f"NCCL_DEBUG=INFO torchrun --nnodes=2 --nproc-per-node=8 --node-rank={rank} "
            "--rdzv-backend=static --rdzv-endpoint=10.0.0.1:29500 train.py --epochs 3",
        )
        for rank in (0, 1)
    ]


def test_an_ipv6_endpoint_has_brackets() -> None:
    hosts = (Host("a", "fd00::1", 1), Host("b", "fd00::2", 1))
    assert "--rdzv-endpoint=[fd00::1]:29500" in shlex.split(torchrun(Job(hosts, TRAIN))[0].text)


def test_torchrun_binds_each_process_to_the_cpus_of_its_gpu() -> None:
    text = only(torchrun(Job((Host("a", "a", 4),), ("x.py", "a b"), affinity=SPLIT)))
    script, *rest = shlex.split(text)[shlex.split(text).index("-c") + 1 :]
    assert rest == ["bash", "x.py", "a b"]
    shown = subprocess.run(
        ["bash", "-c", script.replace("exec taskset", "echo"), *rest],
        env={"LOCAL_RANK": "2", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "-c 16-31 python x.py a b\n"


def test_devices_are_made_visible() -> None:
    text = only(torchrun(Job((Host("a", "a", 2),), TRAIN, devices=(0, 3))))
    assert text.startswith("CUDA_VISIBLE_DEVICES=0,3 torchrun --standalone --nproc-per-node=2")


def test_mpirun_maps_by_socket() -> None:
    job = Job(TWO, ("python", "train.py"), {"NCCL_SOCKET_IFNAME": "=eth0"})
    assert only(mpirun(job)) == (
        "mpirun -np 16 -H 10.0.0.1:8,10.0.0.2:8 --map-by socket --bind-to socket "
        "--mca btl_tcp_if_include eth0 -x NCCL_SOCKET_IFNAME==eth0 python train.py"
    )


@pytest.mark.parametrize(
    ("affinity", "mapping"),
    [
        (SPLIT, "--map-by ppr:2:socket --bind-to socket"),
        (("0-7", "8-15", "16-23", "24-31"), "--map-by ppr:1:numa --bind-to numa"),
        (("0-15", "16-31", "0-15", "16-31"), "--map-by slot --bind-to none"),
    ],
)
def test_mpirun_puts_ranks_beside_their_gpus(affinity: tuple[str, ...], mapping: str) -> None:
    assert mapping in only(mpirun(Job((Host("a", "a", 4),), TRAIN, affinity=affinity)))


def test_horovodrun() -> None:
    """Check the line of horovodrun."""
    job = Job(TWO, ("python", "train.py"), {"NCCL_SOCKET_IFNAME": "=eth0"})
    assert only(horovodrun(job)) == (
        "NCCL_SOCKET_IFNAME='=eth0' horovodrun -np 16 -H 10.0.0.1:8,10.0.0.2:8 "
        "--network-interface eth0 python train.py"
    )


def test_docker_quotes_devices_exactly() -> None:
    job = Job((Host("a", "a", 2),), TRAIN, {"NCCL_DEBUG": "INFO"}, devices=(0, 1))
    assert only(docker(job, "site/train:1")) == (
        "docker run --rm --gpus '\"device=0,1\"' --shm-size=1g --ulimit memlock=-1 --ulimit stack=67108864 "
        "-e NCCL_DEBUG=INFO site/train:1 torchrun --standalone --nproc-per-node=2 train.py --epochs 3"
    )


def test_docker_on_two_nodes_with_rdma() -> None:
    lines = docker(Job(TWO, TRAIN, {"NCCL_IB_DISABLE": "0"}), "image")
    assert "--gpus all" in lines[0].text
    assert "--network=host --device=/dev/infiniband --cap-add=IPC_LOCK" in lines[0].text
    assert "--node-rank=1" in lines[1].text


def test_docker_plain() -> None:
    """Check that `plain` runs the command itself, without torchrun."""
    assert only(docker(Job(ONE, ("nvidia-smi",)), "image", plain=True)).endswith(" image nvidia-smi")


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z]{1,5}", fullmatch=True),
        st.text(st.characters(codec="ascii", exclude_categories=["Cc"])),
        max_size=3,
    )
)
def test_any_value_comes_through_the_shell(environment: dict[str, str]) -> None:
    words = shlex.split(only(mpirun(Job(ONE, TRAIN, environment))))
    given_back = dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "-x")
    assert given_back == environment


def test_affinity_of_some_devices() -> None:
    assert affinity_of(parse_topology(TOPOLOGY), (1, 2)) == ("0-15", "16-31")
    assert affinity_of(parse_topology(TOPOLOGY)) == SPLIT


def test_affinity_that_is_no_list_of_cpus_is_not_used() -> None:
    assert affinity_of(parse_topology(TOPOLOGY.replace("0-15", "$(reboot)"))) == ()


def test_a_device_the_node_does_not_have() -> None:
    with pytest.raises(InvalidInput, match="no GPU 4"):
        affinity_of(parse_topology(TOPOLOGY), (0, 4))


def run(*arguments: str) -> dict[str, list[dict[str, str]]]:
    """Run `gpuprov launch` with JSON output; return the document."""
    result = CliRunner().invoke(command, [*arguments], standalone_mode=False)
    if result.exception:
        raise result.exception
    document: dict[str, list[dict[str, str]]] = json.loads(result.stdout)
    return document


def test_the_verb_with_hosts(tmp_path: Path) -> None:
    (tmp_path / "topo").write_text(TOPOLOGY)
    lines = run(
        "torchrun", "--hosts", "gpu[01-02]", "--gpus-per-node", "4", "--topology", str(tmp_path / "topo"),
        "-e", "A=b c", "-o", "json", "train.py", "-o", "mine",
    )["lines"]  # fmt: skip
    assert [line["host"] for line in lines] == ["gpu01", "gpu02"]
    assert lines[0]["line"].startswith("A='b c' torchrun --nnodes=2")
    assert lines[0]["line"].endswith("bash train.py -o mine")


def test_the_verb_needs_a_number_of_gpus() -> None:
    with pytest.raises(InvalidInput, match="without the number of GPUs"):
        run("mpirun", "--hosts", "gpu01", "train")


@pytest.mark.parametrize("stated", ["a", "0,0", "0,", "-1", "²", "٣"])
def test_the_verb_refuses_odd_devices(stated: str) -> None:
    with pytest.raises(InvalidInput, match="--devices"):
        run("torchrun", "--hosts", "a", f"--devices={stated}", "x.py")


def test_the_verb_refuses_a_topology_of_another_size(tmp_path: Path) -> None:
    (tmp_path / "topo").write_text(TOPOLOGY)
    with pytest.raises(InvalidInput, match="4 GPUs"):
        run("torchrun", "--hosts", "a", "--gpus-per-node", "8", "--topology", str(tmp_path / "topo"), "x.py")


def test_the_verb_takes_nccls_variables_from_the_lock(tmp_path: Path) -> None:
    lock = read_lock(RECORDED_LOCK)
    [(name, group)] = lock.groups.items()
    nccl = Setting(value={"NCCL_IB_DISABLE": "1", "GLOO_SOCKET_IFNAME": "eth0"}, reason="", source="")
    changed = group.model_copy(update={"settings": {**group.settings, "nccl": nccl}})
    write_lock(lock.model_copy(update={"groups": {name: changed}}), tmp_path / "lock.yml")
    lock_option = ("--lock", str(tmp_path / "lock.yml"))
    [line] = run("torchrun", *lock_option, "-e", "NCCL_IB_DISABLE=0", "-o", "json", "x.py")["lines"]
    assert line["line"].startswith("NCCL_IB_DISABLE=0 GLOO_SOCKET_IFNAME=eth0 torchrun")
