"""Conclusions from a topology, its drawing, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from gpuprov.cli.topo import command
from gpuprov.topology import judge_topology, nearest_nics, parse_topology
from gpuprov.topology.svg import draw
from gpuprov.topology.verdict import fold
from tests import H200, RECORDED

TWO_SOCKETS = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV4\tSYS\tSYS\tPIX\t0-15\t0
GPU1\tNV4\t X \tSYS\tSYS\tNODE\t0-15\t0
GPU2\tSYS\tSYS\t X \tNV4\tSYS\t16-31\t1
GPU3\tSYS\tSYS\tNV4\t X \tSYS\t16-31\t1
NIC0\tPIX\tNODE\tSYS\tSYS\t X

NIC Legend:

  NIC0: mlx5_0
"""


def texts(rule: str, matrix: str = TWO_SOCKETS) -> list[tuple[str, str]]:
    """Return level and text of a rule's findings about a matrix."""
    return [
        (found.level, found.text) for found in judge_topology(parse_topology(matrix)) if found.rule == rule
    ]


def test_all_pairs_by_nvlink() -> None:
    assert texts("gpu.pairs", (H200 / "topo-m.txt").read_text()) == [
        ("ok", "all 6 GPU pairs are joined by NVLink, 18 links a pair")
    ]


@pytest.mark.parametrize("machine", ["h200x4", "h100x4"])
def test_four_gpus_of_one_switched_board_raise_no_alarm(machine: str) -> None:
    """Judge what nvidia-smi of driver 580 prints on a virtual machine with one NUMA node."""
    document = json.loads((RECORDED / f"doctor/{machine}.json").read_text())
    topology = parse_topology(document["collectors"]["topo"]["text"])
    found = judge_topology(topology, expect_nvlink=True)
    assert [(each.level, each.text) for each in found] == [
        ("ok", "all 6 GPU pairs are joined by NVLink, 18 links a pair"),
        ("ok", "the matrix names no RDMA NIC"),
        ("ok", "GPU[0-3]: nearest CPUs 0-63 (NUMA node 0)"),
    ]
    assert {near.numa for near in topology.affinity.values()} == {0}


def test_pairs_without_nvlink_are_named() -> None:
    [(level, text)] = texts("gpu.pairs")
    assert level == "warn"
    assert "2 of 6 GPU pairs have NVLink; without it: GPU[0-1] with GPU[2-3]" in text


def test_a_gap_is_a_fault_where_the_board_has_nvlink() -> None:
    levels = {
        found.rule: found.level for found in judge_topology(parse_topology(TWO_SOCKETS), expect_nvlink=True)
    }
    assert levels["gpu.pairs"] == "bad"


def test_pairs_over_the_socket_interconnect() -> None:
    [(level, text)] = texts("gpu.socket")
    assert level == "warn"
    assert "4 of 6" in text


def test_who_reaches_its_nic_through_the_cpu() -> None:
    found = texts("nic.nearest")
    assert [level for level, _ in found] == ["ok", "warn", "warn"]
    assert found[1][1].startswith("GPU1 reaches its nearest NIC (mlx5_0) through the CPU")
    assert found[2][1].startswith("GPU[2-3] reach their nearest NIC")


def test_nearest_nics_are_all_equally_near() -> None:
    nearest = nearest_nics(parse_topology(TWO_SOCKETS.replace("NODE", "PIX")))
    assert [link.b for link in nearest["GPU1"]] == ["NIC0"]


def test_nearest_cpus() -> None:
    """Check the finding about the CPUs nearest to each GPU."""
    assert texts("cpu.nearest") == [
        ("ok", "GPU[0-1]: nearest CPUs 0-15 (NUMA node 0)"),
        ("ok", "GPU[2-3]: nearest CPUs 16-31 (NUMA node 1)"),
    ]


def test_a_word_nobody_knows_is_said() -> None:
    assert texts("path.unknown", TWO_SOCKETS.replace("NODE", "N/A"))[0][0] == "warn"


@pytest.mark.parametrize(
    ("gpus", "folded"),
    [(["GPU3"], "GPU3"), (["GPU0", "GPU1", "GPU2"], "GPU[0-2]"), (["GPU0", "GPU2", "GPU10"], "GPU[0,2,10]")],
)
def test_fold(gpus: list[str], folded: str) -> None:
    """Check the short form of a list of GPUs."""
    assert fold(gpus) == folded


@pytest.mark.parametrize(
    "matrix", [TWO_SOCKETS, (H200 / "topo-m.txt").read_text(), "\tGPU0\tCPU Affinity\nGPU0\t X \t0\n"]
)
def test_the_picture_is_whole_xml_and_shows_every_device(matrix: str) -> None:
    topology = parse_topology(matrix)
    root = ElementTree.fromstring(draw(topology, "a <node> & more"))  # noqa: S314 - our own text
    words = {element.text for element in root.iter() if element.tag.endswith("text")}
    assert {*topology.gpus, *(nic.name for nic in topology.nics), "a <node> & more"} <= words


def test_the_verb_prints_one_document(tmp_path: Path) -> None:
    picture = tmp_path / "node.svg"
    result = CliRunner().invoke(command, [str(H200 / "topo-m.txt"), "-o", "json", "--svg", str(picture)])
    document = json.loads(result.stdout)
    assert document["schema"] == "gpuprov.topo/1"
    assert document["links"][0] == {"a": "GPU0", "b": "GPU1", "kind": "NV18", "nvlinks": 18}
    assert document["affinity"]["GPU0"] == {"cpus": "0-63", "numa": 0, "gpu_numa": None}
    assert picture.read_text().startswith("<svg")


def test_the_verb_reads_standard_input_and_reports_a_driver_error() -> None:
    result = CliRunner().invoke(command, ["-", "-o", "json"], input="No devices were found\n")
    assert json.loads(result.stdout) == {"schema": "gpuprov.topo/1", "error": "No devices were found"}
