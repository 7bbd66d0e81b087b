"""Conclusions from a log: each rule reports its case, and none reports on a healthy log."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuprov.cli.nccl import command
from gpuprov.nccl.log import read_log
from gpuprov.nccl.verdict import ExpectedPaths, Inter, Intra, judge_log
from tests import H200
from tests.unit.nccl import logs


def verdict(text: str, intra: Intra | None = None, inter: Inter | None = None) -> dict[str, tuple[str, str]]:
    """Return rule → level and text of the findings about a log, with expected paths."""
    found = judge_log(read_log([io.StringIO(text)]), ExpectedPaths(intra, inter))
    return {finding.rule: (finding.level, finding.text) for finding in found}


@pytest.mark.parametrize("intra", ["p2p", "nvlink", None])
def test_recorded_p2p_is_as_expected(intra: Intra | None) -> None:
    found = verdict((H200 / "nccl-p2p.log").read_text(), intra)
    assert {level for level, _ in found.values()} == {"ok"}
    assert "P2P/CUMEM" in found["intra.transport"][1]


def test_recorded_socket_is_not() -> None:
    level, text = verdict((H200 / "nccl-socket.log").read_text(), "p2p")["intra.transport"]
    assert level == "bad"
    assert text.startswith("P2P expected within the node, found NET/Socket (8 connections)")
    assert "NCCL_P2P_DISABLE=1 is set" in text
    assert "NCCL_SHM_DISABLE=1 is set" in text


def test_shared_memory_where_p2p_was_expected() -> None:
    level, text = verdict(logs.V24_SOCKET_AND_SHM, "p2p")["intra.transport"]
    assert level == "bad"
    assert text.startswith("P2P expected within the node, found SHM (1 connections)")
    assert "ACS" in text


def test_shared_memory_where_nothing_was_expected() -> None:
    assert verdict(logs.V24_SOCKET_AND_SHM)["intra.transport"][0] == "warn"


def test_the_driver_refused_p2p() -> None:
    text = (
        logs.V24_SOCKET_AND_SHM
        + "node1:30:97 [0] NCCL INFO Could not enable P2P between dev 1(=3d000) and dev 0\n"
    )
    assert "could not enable P2P" in verdict(text)["intra.transport"][1]


def test_infiniband_with_gdrdma() -> None:
    """Check that InfiniBand with GPUDirect RDMA between nodes is `ok`."""
    found = verdict(logs.V210_IB, "p2p", "ib")
    assert found["inter.transport"] == ("ok", "between nodes: NET/IB (2 connections)")
    assert found["inter.gdrdma"][0] == "ok"


def test_roce_is_reported_from_infiniband_by_its_hcas() -> None:
    assert verdict(logs.V218_ROCE_WITHOUT_GDR, inter="roce")["inter.transport"][0] == "ok"
    assert verdict(logs.V218_ROCE_WITHOUT_GDR, inter="ib")["inter.transport"][0] == "bad"


def test_rdma_without_gpudirect() -> None:
    """Check that RDMA without GPUDirect is a warning that names nvidia_peermem."""
    level, text = verdict(logs.V218_ROCE_WITHOUT_GDR)["inter.gdrdma"]
    assert level == "warn"
    assert "nvidia_peermem" in text


def test_gpudirect_on_some_paths_only() -> None:
    level, text = verdict(logs.V210_IB.replace("[send] via NET/IB/0/GDRDMA", "[send] via NET/IB/0"))[
        "inter.gdrdma"
    ]
    assert level == "warn"
    assert "on 2 of 4 network paths" in text


def test_efa() -> None:
    """Check the findings for EFA: transport, NVLS, and a log that is not complete."""
    found = verdict(logs.V221_EFA, "nvlink", "efa")
    assert found["inter.transport"][0] == "ok"
    assert "NVLS" in found["intra.transport"][1]
    assert found["log.partial"][0] == "warn"


def test_sockets_though_infiniband_is_there() -> None:
    level, text = verdict(logs.V227_SOCKETS_THOUGH_IB)["inter.transport"]
    assert level == "bad"
    assert "although mlx5_0:1 exist: NCCL_NET=Socket is set" in text


def test_infiniband_expected_and_no_device_found() -> None:
    level, text = verdict(logs.V24_SOCKET_AND_SHM, inter="ib")["inter.transport"]
    assert level == "bad"
    assert "NCCL found no RDMA device" in text


def test_docker0_between_nodes() -> None:
    """Check that docker0 as interface between nodes is `bad`."""
    level, text = verdict(logs.V227_SOCKETS_THOUGH_IB)["interface.local"]
    assert level == "bad"
    assert "docker0" in text


def test_ranks_that_never_got_ready() -> None:
    found = verdict(logs.V227_SOCKETS_THOUGH_IB)
    assert found["init.incomplete"][0] == "bad"
    assert "ranks 1 of 2" in found["init.incomplete"][1]


def test_a_log_that_ends_early() -> None:
    early = logs.V218_ROCE_WITHOUT_GDR.split("worker-0: a:1:5 [0] NCCL INFO Channel")[0]
    assert verdict(early)["init.incomplete"][0] == "warn"


def test_mixed_versions() -> None:
    """Check that nodes with different versions of NCCL are `bad`."""
    found = verdict(logs.V210_IB + "dgx2:300:400 [0] NCCL INFO NCCL version 2.11.4+cuda11.3\n")
    assert found["version.mixed"][0] == "bad"


def test_ranks_with_different_environments() -> None:
    text = "".join(f"h{i}:1:1 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to {i}.\n" for i in (1, 2))
    assert "NCCL_IB_TIMEOUT (1, 2)" in verdict(logs.V210_IB + text)["environment.split"][1]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("h:1:1 [0] x.cc:1 NCCL WARN Error: failed to extend /dev/shm/nccl-abc to 100 bytes", "--shm-size"),
        (
            "h:1:1 [0] x.cc:1 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 7000",
            "LOCAL_RANK",
        ),
        ("h:1:1 [0] x.cc:1 NCCL WARN Call to ibv_reg_mr failed", "memlock"),
        ("h:1:1 [0] x.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.1.2<48133> with error 12", "GID"),
        ("RuntimeError: NCCL error in: a.cpp:1, unhandled system error, NCCL version 2.4.8", "NCCL gave up"),
        ("[rank0]:[E ProcessGroupNCCL.cpp:563] Watchdog caught collective operation timeout", "never ended"),
    ],
)
def test_complaints_name_their_cause(line: str, cause: str) -> None:
    level, text = verdict(logs.V210_IB + line + "\n")["nccl.error"]
    assert level == "bad"
    assert cause in text


def test_wrong_values() -> None:
    """Check that wrong results of a measurement are `bad`."""
    found = verdict(logs.V210_IB + "# Out of bounds values : 3 FAILED\n# Avg bus bandwidth    : 12.5\n")
    assert found["results.wrong"][0] == "bad"


def test_nothing_of_nccl() -> None:
    """Check that a text without a line of NCCL is `bad`."""
    assert verdict("epoch 1 loss 0.3\n")["log.empty"][0] == "bad"


def test_the_verb(tmp_path: Path) -> None:
    """Check `nccl parse` with a log in two files, as JSON."""
    parts = logs.V210_IB.splitlines(keepends=True)
    (tmp_path / "a.log").write_text("".join(parts[:8]))
    (tmp_path / "b.log").write_text("".join(parts[8:]))
    files = [str(tmp_path / "a.log"), str(tmp_path / "b.log")]
    result = CliRunner().invoke(command, ["parse", *files, "-o", "json", "--expect-inter", "ib"])
    document = json.loads(result.stdout)
    assert document["transports"]["inter"] == {"NET/IB": 2}
    assert {"level", "text", "rule"} == set(document["verdict"][0])


def test_the_verb_fails_only_against_an_expectation() -> None:
    log = str(H200 / "nccl-socket.log")
    outcomes = [
        CliRunner().invoke(command, ["parse", log, *more], standalone_mode=False).return_value
        for more in ([], ["--expect", "nvlink"])
    ]
    assert outcomes == [0, 1]


def test_the_verb_reads_bytes_that_are_no_text() -> None:
    noise = b"\xff\xfe\x00 NCCL INFO Using network IB\n"
    result = CliRunner().invoke(command, ["parse", "-", "-o", "json"], input=noise, standalone_mode=False)
    assert result.exception is None
    assert json.loads(result.stdout)["network"] == "IB"
