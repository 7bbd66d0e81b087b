"""Parsing of NCCL's log: versions 2.4 to 2.28, every transport, and incomplete logs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprov.nccl.communicators import COMMUNICATORS
from gpuprov.nccl.lines import Interface, LoggedHca, environment, hcas, interfaces, messages, path, version
from gpuprov.nccl.log import NcclLog, read_log
from tests import H200
from tests.unit.nccl import logs


def read(text: str) -> NcclLog:
    """Return the parsed log of a text."""
    return read_log([io.StringIO(text)])


def recorded(name: str) -> NcclLog:
    """Return a parsed recorded log of a node with H200."""
    return read((H200 / name).read_text())


LINE = "h:1:1 [0] NCCL INFO "


@pytest.mark.parametrize(
    ("text", "limit", "kept"),
    [
        (f"{LINE}Channel 00/0 : 0[0] -> #[1] via NET/IB/0\n", "log.PATHS", lambda log: len(log.paths)),
        (f"{LINE}NCCL_A# set by environment to 1\n", "log.VALUES", lambda log: len(log.environment)),
        (f"{LINE}NCCL_A set by environment to #\n", "log.VALUES", lambda log: len(log.environment["NCCL_A"])),
        (f"{LINE}Using network N#\n", "log.VALUES", lambda log: len(log.networks)),
        (f"{LINE}NCCL version 2.#.1+cuda12.1\n", "log.VALUES", lambda log: len(log.versions)),
        (f"{LINE}NET/Socket : Using [0]e#:10.0.0.1<0>\n", "log.PORTS", lambda log: len(log.interfaces)),
        (f"{LINE}NET/IB : Using [0]m#:1/IB\n", "log.PORTS", lambda log: len(log.hcas)),
        ("# Rank # Group 0 Pid 1 on h device 0\n", "log.RANKS", lambda log: log.ranks),
        ("  1# 1 float sum -1 1.0 1.0 1.0 0\n", "bandwidth.SIZES", lambda log: len(log.results.rows)),
        (
            f"{LINE}comm 0x# rank # nranks 9 cudaDev 0 busId 0 commId 0xaa - Init COMPLETE\n",
            "communicators.MEMBERS",
            lambda log: log.as_dict()["communicators"][0]["ranks_seen"],
        ),
        (
            f"{LINE}comm 0x# rank 0 nranks # - Init COMPLETE\n",
            "communicators.MEMBERS",
            lambda log: len(log.as_dict()["communicators"]),
        ),
    ],
)
def test_what_is_kept_of_a_log_without_an_end_is_limited(
    monkeypatch: pytest.MonkeyPatch, text: str, limit: str, kept: Callable[[NcclLog], int]
) -> None:
    whole = "".join(text.replace("#", str(at)).replace(f"{at} Rank", "# Rank", 1) for at in range(1, 9))
    whole = whole.replace("# Group", "Group")
    assert kept(read(whole)) == 8
    monkeypatch.setattr(f"gpuprov.nccl.{limit}", 3)
    assert kept(read(whole)) == 3


def test_texts_of_a_log_are_limited() -> None:
    long = "x" * 9000
    log = read(
        f"{long}:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via NET/{long}/0\n"
        f"{LINE}NCCL_{long.upper()} set by environment to 1\n{LINE}NCCL_A set by environment to {long}\n"
        f"{LINE}Using network {long}\n{LINE}NET/IB : Using [0]{long}:1/IB\n"
    )
    assert len(json.dumps(log.as_dict())) < 16_000


def test_recorded_p2p() -> None:
    """Check what is parsed from a recorded log of GPUs in one node."""
    log = recorded("nccl-p2p.log")
    assert (log.version, log.driver_cuda) == (("2.28.9", "13.0"), "13.0")
    assert (log.ranks, log.nodes, log.hosts) == (4, 1, ["gpu01"])
    assert log.transports == {"intra": {"P2P/CUMEM": 96}, "inter": {}}
    assert (log.gdrdma, log.nvls, log.network) == (False, False, "Socket")
    assert log.results.peak == pytest.approx(328.8, abs=0.1)
    [comm] = log.as_dict()["communicators"]
    assert (comm["id"], comm["ranks_complete"], comm["waiting"]) == ("0x2bf117da7dad1e96", 4, [])


def test_recorded_socket_stays_on_one_node_though_nccl_counts_four() -> None:
    log = recorded("nccl-socket.log")
    assert log.nodes == 1
    assert log.transports == {"intra": {"NET/Socket": 8}, "inter": {}}
    assert log.as_dict()["environment"] == {
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
    }
    assert log.as_dict()["interfaces"] == ["lo"]


def test_2_4_names_the_communicator_after_its_paths() -> None:
    log = read(logs.V24_SOCKET_AND_SHM)
    assert log.version == ("2.4.8", "10.1")
    assert (log.ranks, log.nodes, log.hosts) == (3, 2, ["node1", "node2"])
    assert log.transports == {"intra": {"SHM": 1}, "inter": {"NET/Socket": 2}}
    assert log.as_dict()["interfaces"] == ["eth0", "net1"]
    assert log.complaints.warnings == [{"text": "Failed to open libibverbs.so[.1]", "count": 1}]


def test_2_10_over_infiniband_under_mpirun() -> None:
    log = read(logs.V210_IB)
    assert log.version == ("2.10.3", "11.3")
    assert (log.ranks, log.nodes) == (4, 2)
    assert log.transports == {"intra": {"P2P/IPC": 2}, "inter": {"NET/IB": 2}}
    assert log.gdrdma
    assert log.as_dict()["hca_links"] == {"mlx5_0:1": "IB", "mlx5_1:1": "IB"}


def test_2_18_over_roce() -> None:
    log = read(logs.V218_ROCE_WITHOUT_GDR)
    assert (log.gdrdma, log.gdrdma_refused) == (False, True)
    assert log.hcas == {LoggedHca("mlx5_0", 1, "RoCE")}
    assert log.environment["NCCL_IB_HCA"] == {"mlx5_0": 1}
    assert log.transports["inter"] == {"NET/IB": 2}


def test_2_21_with_a_plugin_and_one_rank_of_sixteen() -> None:
    log = read(logs.V221_EFA)
    assert (log.ranks, log.nodes, log.provider, log.network) == (16, 2, "efa", "AWS Libfabric")
    assert log.transports == {"intra": {"P2P/CUMEM": 1}, "inter": {"NET/AWS Libfabric": 1}}
    assert log.gdrdma
    assert log.nvls


def test_2_27_with_times_and_ipv6() -> None:
    log = read(logs.V227_SOCKETS_THOUGH_IB)
    assert log.version == ("2.27.7", "13.0")
    assert log.as_dict()["hcas"] == ["mlx5_0:1"]
    assert Interface("eth0", "fe80::1%eth0", "data") in log.interfaces
    assert log.environment["NCCL_NET"] == {"Socket": 1}
    [error] = log.complaints.errors
    assert "Connection refused" in error["text"]
    assert "firewall" in error["cause"]


def test_two_communicators_of_one_process_are_told_apart() -> None:
    again = logs.V218_ROCE_WITHOUT_GDR.replace("0xabc", "0xdef").replace("comm 0x5", "comm 0x6")
    log = read(logs.V218_ROCE_WITHOUT_GDR + again)
    assert [comm["id"] for comm in log.as_dict()["communicators"]] == ["0xabc", "0xdef"]


def test_old_communicators_without_id_are_told_apart_by_order() -> None:
    later = logs.V210_IB.replace("comm 0x", "comm 0xf")
    assert len(list(read(logs.V210_IB + later).communicators)) == 2


def test_a_communicator_whose_first_lines_lack_its_id_is_one() -> None:
    log = read(logs.V227_SOCKETS_THOUGH_IB)
    [comm] = log.as_dict()["communicators"]
    assert (comm["id"], comm["ranks_seen"], comm["waiting"]) == ("0x7", 2, [1])


def test_a_communicator_that_got_its_id_is_not_joined_without_one() -> None:
    line = "n:{rank}:1 [0] NCCL INFO comm {pointer} rank {rank} nRanks 2 {rest}Init START\n"
    result = [(0, "0x1", ""), (0, "0x1", "commId 0xa "), (0, "0x2", ""), (1, "0x3", ""), (1, "0x4", "")]
    log = read("".join(line.format(rank=rank, pointer=at, rest=rest) for rank, at, rest in result))
    found = log.as_dict()["communicators"]
    assert [(comm["id"], comm["ranks_seen"]) for comm in found] == [("0xa", 1), (None, 2), (None, 1)]


def test_communicators_beyond_the_limit_are_ignored() -> None:
    line = "n:1:1 [0] NCCL INFO comm 0x{} rank 0 nRanks 2 - Init START\n"
    log = read("".join(map(line.format, range(COMMUNICATORS + 9))))
    assert len(list(log.communicators)) == COMMUNICATORS


def test_containers_of_one_machine_are_one_node() -> None:
    log = read(
        "a:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0\n"
        "b:1:1 [0] NCCL INFO comm 0x1 rank 1 nRanks 2 nNodes 1 localRanks 2 localRank 1 MNNVL 0\n"
        "a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0\n"
    )
    assert (log.nodes, log.transports["intra"]) == (1, {"NET/Socket": 1})


def test_multi_node_nvlink_is_between_nodes() -> None:
    log = read(
        "a:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 1\n"
        "b:1:1 [0] NCCL INFO comm 0x1 rank 1 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 1\n"
        "a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/CUMEM\n"
    )
    assert log.transports == {"intra": {}, "inter": {"P2P/CUMEM": 1}}


def test_lines_cut_into_by_another_rank_are_both_read() -> None:
    line = "a:1:2 [0] NCCL INFO Using network IBb:3:4 [1] NCCL INFO NCCL_DEBUG set by environment to INFO\n"
    assert [(said.host, said.text) for said in messages(line.replace("IBb", "IB b"))] == [
        ("a", "Using network IB"),
        ("b", "NCCL_DEBUG set by environment to INFO"),
    ]


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[1,0]<stdout>:",
        "worker-0: ",
        "[default0]:",
        "0: ",
        "2025-01-01T10:00Z ",
        "\x1b[36m(Ray pid=7)\x1b[0m ",
    ],
)
def test_launchers_prefixes(prefix: str) -> None:
    """Check that a line is parsed after a launcher's prefix."""
    [said] = messages(f"{prefix}gpu-1.example:10:20 [3] NCCL INFO Using network IB\r\n")
    assert (said.host, said.pid, said.text) == ("gpu-1.example", 10, "Using network IB")


def test_a_message_without_prefix_is_read() -> None:
    [said] = messages("NCCL INFO Using network Socket")
    assert (said.host, said.text) == (None, "Using network Socket")


def test_a_warning_names_its_place() -> None:
    [said] = messages("[2026-01-01 00:00:00] h:1:2 [0] misc/ibvwrap.cc:401 (wrap_x) NCCL WARN Call failed")
    assert (said.host, said.level, said.text) == ("h", "WARN", "Call failed")


@pytest.mark.parametrize(
    ("via", "transport", "gdrdma"),
    [
        ("P2P/direct pointer", "P2P/direct pointer", False),
        ("P2P/IPC/read", "P2P/IPC", False),
        ("P2P/indirect/4[8000]/read", "P2P/indirect", False),
        ("SHM/direct/direct", "SHM", False),
        ("SHM/CE/direct", "SHM", False),
        ("NET/IB/0(3)/GDRDMA(PCI)", "NET/IB", True),
        ("NET/IBext_v8/1/GDRDMA", "NET/IBext_v8", True),
        ("NET/FasTrak/0/GDRDMA", "NET/FasTrak", True),
        ("NET/UCX/0/GDRDMA comm 0x22fcfb0 nRanks 02", "NET/UCX", True),
        ("NET/Socket/0/Shared", "NET/Socket", False),
        ("rabbit holes", "other", False),
    ],
)
def test_transports(via: str, transport: str, gdrdma: bool) -> None:
    """Check ranks, transport and GPUDirect RDMA that are parsed from a channel's line."""
    found = path(f"Channel 07/1 : 3[b000] -> 12[0] [send] via {via}")
    assert found is not None
    assert (found.source, found.target, found.transport, found.gdrdma) == (3, 12, transport, gdrdma)


def test_collnet_leads_into_the_network() -> None:
    """Check what is parsed from a channel's line about CollNet."""
    found = path("CollNet 00/0 : 5 [receive] via COLLNET/SHARP/0/GDRDMA")
    assert found is not None
    assert (found.target, found.receiving, found.transport, found.gdrdma) == (
        None,
        True,
        "COLLNET/SHARP",
        True,
    )


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("NCCL version 2.4.8+cuda10.1", ("2.4.8", "10.1")),
        ("NCCL version 2.28.9+cuda13.0", ("2.28.9", "13.0")),
        ("RCCL version : 2.20.5-HEAD:d380693", ("2.20.5", None)),
        ("NCCL version 2.18.6-1+cuda12.2", ("2.18.6", "12.2")),
        ("NCCL says nothing", None),
    ],
)
def test_versions(text: str, stated: tuple[str, str | None] | None) -> None:
    """Check the NCCL version that is parsed from a line."""
    assert version(text) == stated


def test_environment_loses_the_sentence_dot_alone() -> None:
    assert environment("NCCL_SHM_DISABLE set by environment to 1.") == ("NCCL_SHM_DISABLE", "1")
    assert environment("NCCL_IB_HCA set to =mlx5_0:1,mlx5_1:1") == ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1")


def test_interfaces_and_hcas_of_one_line() -> None:
    text = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_bond_0:1/RoCE [RO]; OOB ib0.8001:10.0.0.1<0>"
    assert hcas(text) == [LoggedHca("mlx5_0", 1, "IB"), LoggedHca("mlx5_bond_0", 1, "RoCE")]
    assert interfaces(text) == [Interface("ib0.8001", "10.0.0.1", "oob")]


def test_a_line_without_end_is_read_in_pieces() -> None:
    log = read("x" * 300_000 + " NCCL INFO Using network IB\n" + logs.V221_EFA)
    assert log.ranks == 16


def test_ranks_and_hosts_of_nccl_tests_alone() -> None:
    log = read(
        "#  Rank  0 Group  0 Pid   4124 on   node-1 device  0 [0x00] NVIDIA H100\n"
        "#  Rank  1 Group  0 Pid   4125 on   node-2 device  0 [0x00] NVIDIA H100\n"
    )
    assert (log.ranks, log.hosts, log.nodes) == (2, ["node-1", "node-2"], 2)


@given(
    st.lists(
        st.sampled_from(logs.V210_IB.splitlines() + logs.V227_SOCKETS_THOUGH_IB.splitlines()), max_size=30
    )
)
def test_any_order_and_any_gap_is_read(lines: list[str]) -> None:
    document = read("\n".join(lines)).as_dict()
    assert document["schema"] == "gpuprov.nccl/1"


@given(st.text(alphabet="NCL INFOWAR:[]0123456789abx->via/commrank\n ", max_size=400))
def test_any_text_is_read(text: str) -> None:
    assert read("a:1:2 [0] NCCL INFO " + text).messages >= 1


LONG = "9" * 4000


@pytest.mark.parametrize(
    "line",
    [
        f"allreduce_mb {LONG} ms 1.5 busbw_GBs 1",
        f"{LONG} 1 float sum -1 1.0 1.0 1.0 0",
        f"1048576 262144 float sum -1 {LONG} 1.0 1.0 0",
        f"# Avg bus bandwidth    : {LONG}",
        f"# Out of bounds values : {LONG}",
        f"#  Rank  {LONG} Group  0 Pid   1 on  h device  0",
        f"h:{LONG}:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
        f"h:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:{LONG}/RoCE",
        f"h:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes {LONG} localRanks 1",
        f"h:1:1 [0] NCCL INFO NCCL version {LONG}.1.1",
    ],
)
def test_numbers_of_many_digits_are_no_numbers(line: str) -> None:
    text = json.dumps(read(f"{line}\n").as_dict(), allow_nan=False)
    assert "9" * 19 not in text


def test_a_sign_that_is_no_digit_is_no_count() -> None:
    log = read("1048576 262144 float sum -1 1.0 1.0 1.0 \N{SUPERSCRIPT TWO}\n")
    assert log.results.wrong == 0
