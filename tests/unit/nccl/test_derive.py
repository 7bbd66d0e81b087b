"""NCCL's environment for many network layouts: the values, and the reason of each exclusion."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprov.nccl.derive import agree, derive
from gpuprov.nccl.networks import NetworkInterface
from gpuprov.nccl.rdma import Gid, RdmaPort, gid_index
from gpuprov.nccl.site import check_site, matching

LO = NetworkInterface("lo", "virtual", addresses=("127.0.0.1/8", "::1/128"))
DOCKER = NetworkInterface("docker0", "bridge", addresses=("172.17.0.1/16",))
CNI = (
    NetworkInterface("cni0", "bridge", addresses=("10.244.1.1/24",)),
    NetworkInterface("flannel.1", "virtual", addresses=("10.244.1.0/32",)),
    NetworkInterface("cali1f2e3d", "virtual"),
    NetworkInterface("veth01", "virtual", master="cni0"),
)
MANAGEMENT = NetworkInterface(
    "eno1", speed=1_000, addresses=("192.168.0.5/24",), mtu=1500, driver="igb", default_route=True
)


def ethernet(name: str, gigabits: int, network: int = 0, mtu: int = 9000, **more: object) -> NetworkInterface:
    """Return an Ethernet interface with a speed in Gbit/s and an address in a network."""
    address = (f"10.{network}.0.5/24",)
    return replace(NetworkInterface(name, speed=gigabits * 1000, addresses=address, mtu=mtu), **more)  # type: ignore[arg-type]


def infiniband(index: int, rate: float = 400, **more: object) -> RdmaPort:
    """Return an InfiniBand port with a rate in Gbit/s."""
    base = RdmaPort(f"mlx5_{index}", rate=rate, interfaces=(f"ib{index}",))
    return replace(base, **more)  # type: ignore[arg-type]


def roce(index: int, interface: str, gid: int = 3, rate: float = 100, **more: object) -> RdmaPort:
    """Return a RoCE port of an interface, with RoCE v2 at this GID index."""
    gids = (Gid(1, "IB/RoCE v1", "::ffff:10.0.0.5"), Gid(gid, "RoCE v2", "::ffff:10.0.0.5"))
    base = RdmaPort(f"mlx5_{index}", 1, "ACTIVE", "Ethernet", rate, (interface,), gids)
    return replace(base, **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Layout:
    """Interfaces and ports, expected variables (None: must not be set), and expected exclusions."""

    name: str
    nics: tuple[NetworkInterface, ...]
    expected: dict[str, str | None]
    hcas: tuple[RdmaPort, ...] = ()
    excluded: dict[str, str] = field(default_factory=dict)
    finding: str | None = None


LAYOUTS = [
    Layout(
        "one NIC",
        (LO, ethernet("eth0", 25)),
        {"NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0", "NCCL_IB_DISABLE": "1"},
        excluded={"lo": "loopback"},
    ),
    Layout("renamed NIC", (ethernet("fabric-a", 100),), {"NCCL_SOCKET_IFNAME": "=fabric-a"}),
    Layout(
        "bond of two",
        (
            ethernet("bond0", 50, kind="bond"),
            NetworkInterface("ens1f0", speed=25_000, master="bond0"),
            NetworkInterface("ens1f1", speed=25_000, master="bond0"),
        ),
        {"NCCL_SOCKET_IFNAME": "=bond0"},
        excluded={"ens1f0": "part of bond0", "ens1f1": "part of bond0"},
    ),
    Layout(
        "VLAN on a bond without address",
        (NetworkInterface("bond0", "bond", speed=50_000), ethernet("bond0.300", 50, kind="vlan")),
        {"NCCL_SOCKET_IFNAME": "=bond0.300"},
        excluded={"bond0": "no address"},
    ),
    Layout(
        "three VLANs on one wire",
        (
            ethernet("bond0.100", 50, 1, mtu=1500, kind="vlan"),
            ethernet("bond0.300", 50, 3, mtu=9000, kind="vlan"),
        ),
        {"NCCL_SOCKET_IFNAME": "=bond0.300"},
        excluded={"bond0.100": "shares bond0 with bond0.300"},
        finding="network.doubt",
    ),
    Layout(
        "two rails",
        (MANAGEMENT, ethernet("ens1", 100, 1), ethernet("ens2", 100, 2)),
        {"NCCL_SOCKET_IFNAME": "=ens1,ens2", "GLOO_SOCKET_IFNAME": "ens1", "NCCL_CROSS_NIC": "0"},
        excluded={"eno1": "management: 1 Gb/s beside 100 Gb/s"},
    ),
    Layout(
        "two rails in one network",
        (ethernet("ens1", 100), ethernet("ens2", 100)),
        {"NCCL_SOCKET_IFNAME": "=ens1,ens2", "NCCL_CROSS_NIC": "2"},
    ),
    Layout(
        "8 InfiniBand rails",
        (MANAGEMENT, *(ethernet(f"ib{i}", 400, i, mtu=4092, infiniband=True) for i in range(8))),
        {
            "NCCL_IB_DISABLE": "0",
            "NCCL_IB_HCA": "=" + ",".join(f"mlx5_{i}:1" for i in range(8)),
            "NCCL_SOCKET_IFNAME": "=ib0",
            "NCCL_CROSS_NIC": "2",
            "NCCL_IB_GID_INDEX": None,
        },
        hcas=tuple(infiniband(i) for i in range(8)),
        excluded={"eno1": "management"},
    ),
    Layout(
        "InfiniBand without addresses: the management network makes first contact",
        (MANAGEMENT, NetworkInterface("ib0", infiniband=True, speed=200_000)),
        {"NCCL_SOCKET_IFNAME": "=eno1", "NCCL_IB_HCA": "=mlx5_0:1"},
        hcas=(infiniband(0, 200),),
        excluded={"ib0": "no address"},
    ),
    Layout(
        "HGX: 8 rails near GPUs, 2 ports for storage",
        (ethernet("ens10", 100),),
        {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_10:1"},
        hcas=(
            infiniband(0, gpu_distance=3),
            infiniband(2, gpu_distance=5),
            infiniband(10, gpu_distance=2),
        ),
        excluded={"mlx5_2:1": "no GPU near it"},
    ),
    Layout(
        "slower InfiniBand beside the fabric",
        (ethernet("ens10", 100),),
        {"NCCL_IB_HCA": "=mlx5_1:1"},
        hcas=(infiniband(0, 100), infiniband(1, 400)),
        excluded={"mlx5_0:1": "slower"},
    ),
    Layout(
        "RoCE",
        (MANAGEMENT, ethernet("ens1", 100)),
        {"NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": "=mlx5_0:1", "NCCL_IB_GID_INDEX": "3"},
        hcas=(roce(0, "ens1"),),
    ),
    Layout(
        "RoCE on two networks with different GID tables",
        (ethernet("ens1", 100, 1), ethernet("ens2", 100, 2)),
        {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1", "NCCL_IB_GID_INDEX": None, "NCCL_CROSS_NIC": "0"},
        hcas=(roce(0, "ens1", gid=3), roce(1, "ens2", gid=5)),
    ),
    Layout(
        "RoCE over a bond",
        (
            ethernet("bond0", 200, kind="bond"),
            NetworkInterface("ens1f0", master="bond0"),
            NetworkInterface("ens1f1", master="bond0"),
        ),
        {"NCCL_IB_HCA": "=mlx5_bond_0:1", "NCCL_SOCKET_IFNAME": "=bond0"},
        hcas=(roce(0, "ens1f0", name="mlx5_bond_0", rate=200, interfaces=("ens1f0", "ens1f1")),),
    ),
    Layout(
        "RoCE ports of storage and of a link that is down",
        (ethernet("stor0", 100, 1), ethernet("ens2", 100, 2), NetworkInterface("ens3", up=False)),
        {"NCCL_IB_HCA": "=mlx5_1:1", "NCCL_SOCKET_IFNAME": "=ens2"},
        hcas=(roce(0, "stor0"), roce(1, "ens2"), roce(2, "ens3")),
        excluded={"mlx5_0:1": "storage", "mlx5_2:1": "down", "stor0": "storage", "ens3": "down"},
    ),
    Layout(
        "InfiniBand beside RoCE",
        (ethernet("ens1", 100),),
        {"NCCL_IB_HCA": "=mlx5_0:1"},
        hcas=(infiniband(0, 100), roce(1, "ens1", rate=100)),
        excluded={"mlx5_1:1": "not InfiniBand"},
    ),
    Layout(
        "InfiniBand present but down",
        (ethernet("eth0", 25), NetworkInterface("ib0", up=False, infiniband=True)),
        {"NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": None, "NCCL_SOCKET_IFNAME": "=eth0"},
        hcas=(infiniband(0, state="DOWN"), infiniband(1, state="INIT")),
        excluded={"mlx5_0:1": "DOWN", "mlx5_1:1": "INIT", "ib0": "down"},
        finding="rdma.unused",
    ),
    Layout(
        "AWS: several ENA, and EFA",
        (
            NetworkInterface("ens32", driver="ena", addresses=("172.31.1.5/20",), default_route=True),
            NetworkInterface("ens65", driver="ena", addresses=("172.31.1.6/20",)),
        ),
        {"NCCL_SOCKET_IFNAME": "=ens32", "NCCL_IB_DISABLE": "1"},
        hcas=(RdmaPort("rdmap16s27", link_layer="Unspecified"),),
        excluded={"ens65": "not on the default route", "rdmap16s27:1": "EFA"},
        finding="rdma.efa",
    ),
    Layout(
        "cloud without a known route",
        tuple(NetworkInterface(f"eth{i}", driver="ena", addresses=(f"10.0.{i}.5/24",)) for i in (10, 2)),
        {"NCCL_SOCKET_IFNAME": "=eth2"},
        finding="network.doubt",
    ),
    Layout(
        "Google: gVNIC",
        (
            NetworkInterface("eth1", driver="gve", addresses=("10.1.0.5/32",)),
            NetworkInterface("eth0", driver="gve", addresses=("10.0.0.5/32",), default_route=True),
        ),
        {"NCCL_SOCKET_IFNAME": "=eth0"},
    ),
    Layout(
        "Azure: the synthetic NIC owns its virtual function",
        (
            NetworkInterface(
                "eth0", driver="hv_netvsc", speed=100_000, addresses=("10.0.0.4/24",), default_route=True
            ),
            NetworkInterface("enP45s1", driver="mlx5_core", speed=100_000, master="eth0"),
        ),
        {"NCCL_SOCKET_IFNAME": "=eth0", "NCCL_IB_HCA": "=mlx5_ib0:1"},
        hcas=(
            RdmaPort("mlx5_an0", link_layer="Ethernet", rate=100, interfaces=("enP45s1",)),
            infiniband(0, 200, name="mlx5_ib0"),
        ),
        excluded={"enP45s1": "part of eth0", "mlx5_an0:1": "accelerated networking"},
    ),
    Layout(
        "Azure: MANA",
        (NetworkInterface("eth0", driver="mana", addresses=("10.0.0.4/24",), default_route=True),),
        {"NCCL_SOCKET_IFNAME": "=eth0"},
    ),
    Layout(
        "Docker and CNI",
        (
            LO,
            DOCKER,
            *CNI,
            NetworkInterface("br-1a2b3c", "bridge", addresses=("172.18.0.1/16",)),
            ethernet("eth0", 10),
        ),
        {"NCCL_SOCKET_IFNAME": "=eth0"},
        excluded=dict.fromkeys(("docker0", "cni0", "flannel.1", "cali1f2e3d", "br-1a2b3c"), "made by"),
    ),
    Layout(
        "hypervisor and VPN",
        (
            NetworkInterface("virbr0", "bridge", addresses=("192.168.122.1/24",)),
            NetworkInterface("tun0", "virtual", addresses=("10.8.0.2/24",)),
            NetworkInterface("tap1", "virtual"),
            ethernet("enp3s0", 10),
        ),
        {"NCCL_SOCKET_IFNAME": "=enp3s0"},
        excluded={"virbr0": "made by", "tun0": "made by", "tap1": "made by"},
    ),
    Layout(
        "IPv6 only",
        (NetworkInterface("eth0", speed=100_000, mtu=9000, addresses=("fd00::5/64", "fe80::1/64")),),
        {"NCCL_SOCKET_IFNAME": "=eth0", "NCCL_SOCKET_FAMILY": "AF_INET6"},
    ),
    Layout(
        "both families",
        (ethernet("eth0", 100, addresses=("10.0.0.5/24", "fd00::5/64")),),
        {"NCCL_SOCKET_FAMILY": None},
    ),
    Layout(
        "management, storage and fabric",
        (MANAGEMENT, ethernet("ens2", 25, 2), ethernet("ens3", 200, 3)),
        {"NCCL_SOCKET_IFNAME": "=ens3"},
        excluded={"eno1": "management", "ens2": "left to storage and services: 25 Gb/s beside 200 Gb/s"},
    ),
    Layout(
        "management by name, as fast as the fabric",
        (
            ethernet("mgmt0", 100, 1),
            ethernet("ens3", 100, 3),
            NetworkInterface("idrac", driver="cdc_ether", addresses=("169.254.0.2/16",)),
        ),
        {"NCCL_SOCKET_IFNAME": "=ens3"},
        excluded={"mgmt0": "management", "idrac": "management"},
    ),
    Layout(
        "the host's address is on a bridge",
        (ethernet("br0", 10, kind="bridge"), NetworkInterface("enp1s0", speed=10_000, master="br0"), DOCKER),
        {"NCCL_SOCKET_IFNAME": "=br0"},
    ),
    Layout(
        "a container",
        (LO, NetworkInterface("eth0", "virtual", speed=10_000, addresses=("10.78.0.2/24",))),
        {"NCCL_SOCKET_IFNAME": "=eth0"},
    ),
    Layout(
        "small frames on a fast link",
        (ethernet("eth0", 100, mtu=1500),),
        {"NCCL_SOCKET_IFNAME": "=eth0"},
        finding="network.mtu",
    ),
    Layout(
        "nothing to talk over",
        (LO, DOCKER, NetworkInterface("eth0", up=False)),
        {"NCCL_SOCKET_IFNAME": None, "NCCL_IB_DISABLE": "1", "NCCL_CROSS_NIC": None},
        finding="network.none",
    ),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_layout(layout: Layout) -> None:
    """Check the environment, the excluded devices and the finding for a network layout."""
    derived = derive(layout.nics, layout.hcas)
    assert {name: derived.environment.get(name) for name in layout.expected} == layout.expected
    for name, why in layout.excluded.items():
        assert why in derived.excluded[name]
    assert layout.finding is None or layout.finding in {finding.rule for finding in derived.findings}
    assert all(decision.reason for decision in derived.variables.values())


def test_a_healthy_layout_has_no_findings() -> None:
    assert derive([LO, ethernet("eth0", 100)]).findings == ()


def test_a_known_route_leaves_no_doubt() -> None:
    nics = [
        NetworkInterface(f"eth{i}", driver="ena", addresses=(f"10.0.{i}.5/24",), default_route=i == 1)
        for i in (0, 1)
    ]
    assert derive(nics).findings == ()


def test_everything_not_taken_has_a_reason() -> None:
    for layout in LAYOUTS:
        derived = derive(layout.nics, layout.hcas)
        named = " ".join(derived.environment.values())
        left_out = [
            nic.name for nic in layout.nics if nic.name not in named and not derived.excluded.get(nic.name)
        ]
        assert left_out == [] or layout.hcas, layout.name


def test_the_sites_value_wins() -> None:
    derived = derive([ethernet("eth0", 25), ethernet("eth1", 100)], site={"NCCL_SOCKET_IFNAME": "=eth0"})
    assert derived.variables["NCCL_SOCKET_IFNAME"].site
    assert derived.environment["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert derived.findings == ()


@pytest.mark.parametrize(
    ("name", "value", "rule", "words"),
    [
        ("NCCL_SOCKET_IFNAME", "=ens5", "site.missing", "fits no interface of the node (eth0, docker0)"),
        ("NCCL_SOCKET_IFNAME", "docker", "site.unfit", "made by a container engine"),
        ("NCCL_SOCKET_IFNAME", "^eth0", "site.unfit", "docker0"),
        ("GLOO_SOCKET_IFNAME", "=eth0", "site.missing", "GLOO_SOCKET_IFNAME"),
        ("NCCL_IB_HCA", "=mlx5_7", "site.missing", "mlx5_0:1"),
        ("NCCL_IB_HCA", "mlx5", "site.unfit", "not active: mlx5_0:1"),
    ],
)
def test_the_sites_value_is_checked(name: str, value: str, rule: str, words: str) -> None:
    derived = derive([ethernet("eth0", 25), DOCKER], [infiniband(0, state="DOWN")], {name: value})
    [finding] = [finding for finding in derived.findings if finding.rule == rule]
    assert words in finding.text


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        ("eth", ["eth0", "eth1"]),
        ("=eth0", ["eth0"]),
        ("=eth", []),
        ("^docker", ["eth0", "eth1", "lo"]),
        ("^=eth0,docker0", ["eth1", "lo"]),
    ],
)
def test_lists_as_nccl_reads_them(value: str, chosen: list[str]) -> None:
    assert matching(value, ["eth0", "eth1", "docker0", "lo"]) == chosen


def test_a_sites_value_is_checked_in_linear_time() -> None:
    nics = [NetworkInterface(f"eth{number}", addresses=("10.0.0.1/24",)) for number in range(20_000)]
    hcas = [RdmaPort(f"mlx5_{number}", state="DOWN") for number in range(20_000)]
    start = process_time()
    check_site("NCCL_SOCKET_IFNAME", "eth", nics, [])
    check_site("GLOO_SOCKET_IFNAME", ",".join(nic.name for nic in nics), nics, [])
    check_site("NCCL_IB_HCA", "mlx5", [], hcas)
    assert process_time() - start < 3


def test_a_device_without_port_means_all_its_ports() -> None:
    assert matching("=mlx5_1", ["mlx5_1:1", "mlx5_1:2", "mlx5_10:1"]) == ["mlx5_1:1", "mlx5_1:2"]


def test_gid_prefers_ipv4_and_refuses_link_local() -> None:
    table = (
        Gid(0, "RoCE v2", "fe80::1"),
        Gid(2, "RoCE v2", "fd00::5"),
        Gid(5, "RoCE v2", "::ffff:10.0.0.5"),
    )
    assert gid_index([roce(0, "a", gids=table)])[0] == 5
    assert gid_index([roce(0, "a", gids=table[:2])])[0] == 2
    assert gid_index([roce(0, "a", gids=table[:1])])[0] is None


def test_the_odd_node_is_named() -> None:
    same = derive([ethernet("ens5", 100)])
    nodes = {f"gpu{i:02}": same for i in range(1, 8)} | {"gpu08": derive([ethernet("ens6", 100, mtu=1500)])}
    texts = [finding.text for finding in agree(nodes)]
    assert "gpu08: NCCL_SOCKET_IFNAME is =ens6, =ens5 on 7 others" in texts
    assert "gpu08: MTU is 1500, 9000 on 7 others" in texts


def test_nodes_that_agree_say_nothing() -> None:
    assert agree({"a": derive([ethernet("e", 10)]), "b": derive([ethernet("e", 10)])}) == []


NAMES = st.sampled_from(["eth0", "ens5", "bond0", "bond0.7", "docker0", "ib0", "lo", "mgmt0", "br0"])


@given(
    st.lists(
        st.builds(
            NetworkInterface,
            name=NAMES,
            kind=st.sampled_from(["physical", "bond", "vlan", "bridge", "virtual"]),
            up=st.booleans(),
            speed=st.sampled_from([None, 1000, 100_000]),
            addresses=st.sampled_from([(), ("10.0.0.1/24",), ("fd00::1/64",), ("fe80::1/64",)]),
            master=st.sampled_from([None, "bond0"]),
        ),
        unique_by=lambda nic: nic.name,
    )
)
def test_what_is_taken_reaches_other_nodes(nics: list[NetworkInterface]) -> None:
    derived = derive(nics)
    taken = derived.environment.get("NCCL_SOCKET_IFNAME", "=").removeprefix("=").split(",")
    by_name = {nic.name: nic for nic in nics}
    for name in filter(None, taken):
        assert by_name[name].up
        assert by_name[name].routable
        assert name not in derived.excluded
