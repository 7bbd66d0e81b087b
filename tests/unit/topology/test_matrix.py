"""Parsing of `nvidia-smi topo -m` from many drivers, and of pasted text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprov.errors import InvalidInput
from gpuprov.topology import Affinity, driver_error, parse_topology
from tests import H200

DRIVER_352 = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tmlx4_0\tCPU Affinity
GPU0\t X \tPHB\tSOC\tSOC\tSOC\t0-5
GPU1\tPHB\t X \tSOC\tSOC\tSOC\t0-5
GPU2\tSOC\tSOC\t X \tPHB\tPHB\t6-11
GPU3\tSOC\tSOC\tPHB\t X \tPHB\t6-11
mlx4_0\tSOC\tSOC\tPHB\tPHB\t X

Legend:
  SOC  = Connection traversing PCIe as well as the SMP link between CPU sockets(e.g. QPI)
"""

DRIVER_470_AS_SPACES = """\
user@host:~$ nvidia-smi topo -m
        GPU0    GPU1    mlx5_0  mlx5_1  CPU Affinity    NUMA Affinity
GPU0     X      NV4     NODE    SYS     0-23,48-71      0
GPU1    NV4      X      SYS     PIX     24-47,72-95     1
mlx5_0  NODE    SYS      X      SYS
mlx5_1  SYS     PIX     SYS      X
"""

DRIVER_550_UNDERLINED = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\tSYS\t0-55,112-167\t0-1\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\tPIX\t\t\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tPIX\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
    "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: rocep137s0f1\n"
)

GRACE = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tNODE\t0-71\t0,2-17\t\t2
GPU1\tNV18\t X \tSYS\t72-143\t1,18-33\t\t18
NIC0\tNODE\tSYS\t X

NIC Legend:

  NIC0: mlx5_0
"""

SINGLE = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-19\t0\t\tN/A\n"


def test_recorded_h200() -> None:
    """Check the matrix of a recorded node with four H200."""
    topology = parse_topology((H200 / "topo-m.txt").read_text())
    assert topology.gpus == ("GPU0", "GPU1", "GPU2", "GPU3")
    assert topology.nics == ()
    assert {link.nvlinks for link in topology.gpu_pairs} == {18}
    assert len(topology.gpu_pairs) == 6
    assert topology.affinity["GPU3"] == Affinity("0-63", 0, None)


def test_driver_352_calls_the_socket_interconnect_soc() -> None:
    topology = parse_topology(DRIVER_352)
    assert topology.link("GPU0", "GPU2").kind == "SOC"
    assert topology.link("mlx4_0", "GPU3").kind == "PHB"
    assert topology.affinity["GPU2"] == Affinity("6-11", None, None)


def test_tabs_pasted_as_spaces_and_a_prompt_above() -> None:
    topology = parse_topology(DRIVER_470_AS_SPACES)
    assert [nic.device for nic in topology.nics] == ["mlx5_0", "mlx5_1"]
    assert topology.link("GPU1", "mlx5_1").kind == "PIX"
    assert topology.affinity["GPU1"] == Affinity("24-47,72-95", 1, None)


def test_underlined_header_nic_legend_and_empty_columns() -> None:
    topology = parse_topology(DRIVER_550_UNDERLINED)
    assert {nic.name: nic.device for nic in topology.nics} == {"NIC0": "mlx5_0", "NIC1": "rocep137s0f1"}
    assert topology.affinity["GPU0"] == Affinity("0-55,112-167", "0-1", None)
    assert topology.affinity["GPU1"] == Affinity(None, None, None)


def test_grace_gives_gpus_numa_nodes_of_their_own() -> None:
    topology = parse_topology(GRACE)
    assert topology.affinity["GPU0"] == Affinity("0-71", "0,2-17", 2)
    assert topology.affinity["GPU1"].gpu_numa == 18


def test_single_gpu() -> None:
    """Check the matrix of a node with one GPU."""
    topology = parse_topology(SINGLE)
    assert topology.gpu_pairs == []
    assert topology.affinity["GPU0"].cpus == "0-19"


def test_a_row_that_was_cut_off_is_read_from_the_other_side() -> None:
    whole = parse_topology(DRIVER_352)
    cut = parse_topology(DRIVER_352.split("GPU3\tSOC")[0])
    assert cut.link("GPU3", "GPU0") == whole.link("GPU3", "GPU0")


def test_a_second_matrix_below_is_not_mixed_in() -> None:
    topology = parse_topology(SINGLE + DRIVER_352)
    assert topology.gpus == ("GPU0",)


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
        "Make sure that the latest NVIDIA driver is installed and running.\n",
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.159\n",
        "No devices were found\n",
        "bash: nvidia-smi: command not found\n",
        "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error\n",
    ],
)
def test_complaints_are_values(text: str) -> None:
    """Check that an error message of nvidia-smi is returned and not parsed."""
    said = driver_error(text)
    assert said is not None
    assert said.startswith(text.split("\n")[0][:20])


def test_a_matrix_is_no_complaint() -> None:
    assert driver_error(DRIVER_550_UNDERLINED) is None


@pytest.mark.parametrize("text", ["", "hello\n", "GPU0 GPU1\n", (H200 / "topo-p2p-r.txt").read_text()])
def test_what_is_no_matrix_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_topology(text)


@pytest.mark.parametrize("more", [[f"NIC{at}" for at in range(255)], ["GPU1"]])
def test_a_matrix_without_end_is_refused(more: list[str]) -> None:
    header = "\t".join(["", "GPU0", "GPU1", *more])
    with pytest.raises(InvalidInput, match="a header of"):
        parse_topology(f"{header}\nGPU0\tX\tNV1\nGPU1\tNV1\tX\n")


@given(st.text(alphabet="GPUNICX0129 \t\nmlx_SYPHBV-/A,[m\x1b"))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        topology = parse_topology(text)
    except InvalidInput:
        return
    assert topology.gpus


@given(st.integers(1, 16), st.integers(0, 12), st.sampled_from(["\t", "  "]))
def test_any_size_survives(gpus: int, nics: int, gap: str) -> None:
    """Check that a matrix of any size is parsed to the same links."""
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(nics)]
    kinds = {(a, b): f"NV{1 + (a * b) % 18}" for a in range(len(names)) for b in range(len(names))}
    rows = [
        gap.join([name, *("X" if a == b else kinds[a, b] for b in range(len(names))), "0-7", "0"])
        for a, name in enumerate(names)
    ]
    topology = parse_topology("\n".join([gap + gap.join([*names, "CPU Affinity", "NUMA Affinity"]), *rows]))
    assert (len(topology.gpus), len(topology.nics)) == (gpus, nics)
    assert all(
        link.nvlinks == 1 + (names.index(link.a) * names.index(link.b)) % 18 for link in topology.links
    )
    assert all(near == Affinity("0-7", 0, None) for near in topology.affinity.values())
