"""Ids of communicators, held against the addresses of the nodes that made them."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface
from pathlib import Path
from typing import Any

import pytest

from gpuprov.accept.across.meeting import Meeting, interfaces_of, known_addresses, led_to
from gpuprov.accept.node import fabric
from gpuprov.errors import NodeFailed
from gpuprov.model.connection import Connection
from gpuprov.ssh.transport import Target
from tests.unit.accept.recorded import recorded


def handle(address: IPv4Address | IPv6Address, port: int = 6443) -> str:
    """Return an id as NCCL makes it: struct ncclBootstrapHandle of its src/include/bootstrap.h."""
    head = b"\1\2\3\4\5\6\7\xf8" + struct.pack("<H", 2 if address.version == 4 else 10)
    flow = b"" if address.version == 4 else bytes(4)
    return (head + struct.pack(">H", port) + flow + address.packed).ljust(128, b"\0").hex()


NAMES = [f"n{number}" for number in range(1, 5)]
LOGINS = {name: [ip_address(f"10.0.0.{name[1]}")] for name in NAMES}
FABRIC = {
    name: [ip_interface(f"{network}.{name[1]}/24") for network in ("10.0.0", "10.8.0")] for name in NAMES
}


def test_the_layout_is_that_of_real_ids() -> None:
    """Read ids that NCCL 2.28.3 made on real machines, whose logs name the same address."""
    for machine in ("h200x2", "h200x4", "h100x4"):
        asked: Any
        for asked in recorded("two-nodes", machine):
            if asked["orders"].get("gpu01", {}).get("do") == "id":
                made = asked["answers"]["gpu01"]["value"]
                assert str(led_to(bytes.fromhex(made))) == "192.0.2.2"
                assert Meeting({"gpu01": [ip_address("192.0.2.2")]}).check("gpu01", made) == made


@pytest.mark.parametrize("address", ["10.0.0.1", "10.8.0.1", "10.8.0.77"])
def test_an_address_of_the_node_is_taken(address: str) -> None:
    made = handle(ip_address(address))
    assert Meeting(LOGINS, FABRIC).check("n1", made) == made


def test_an_address_of_ipv6_is_taken() -> None:
    made = handle(ip_address("2001:db8::1"))
    assert Meeting({"n1": [ip_address("2001:db8::1")]}).check("n1", made) == made


@pytest.mark.parametrize(
    "address",
    [
        *("10.0.0.2", "10.0.0.99", "192.0.2.7", "127.0.0.1", "0.0.0.0", "169.254.169.254", "224.0.0.1"),  # noqa: S104
        *("::1", "::", "::ffff:127.0.0.1", "fe80::1", "ff02::1", "2001:db8::7"),
    ],
)
def test_another_address_is_refused(address: str) -> None:
    with pytest.raises(NodeFailed, match="leads to") as refused:
        Meeting(LOGINS, FABRIC).check("n1", handle(ip_address(address)))
    assert "expected 10.0.0.1, or an address in another network of the other nodes" in str(refused.value)
    assert "set NCCL_SOCKET_IFNAME in `settings.nccl`" in str(refused.value)


def test_special_addresses_are_refused_where_nodes_have_them_too() -> None:
    everywhere = {name: [ip_interface("127.0.0.1/8"), ip_interface("169.254.0.1/16")] for name in NAMES}
    for address in ("127.0.0.1", "169.254.169.254"):
        with pytest.raises(NodeFailed, match="leads to"):
            Meeting({"n1": [ip_address(address)]}, everywhere).check("n1", handle(ip_address(address)))


def test_a_nodes_own_word_about_its_networks_does_not_count() -> None:
    stated = {**FABRIC, "n1": [ip_interface("172.30.0.9/16"), ip_interface("0.0.0.0/0")]}
    with pytest.raises(NodeFailed, match=r"leads to 172\.30\.0\.9"):
        Meeting(LOGINS, stated).check("n1", handle(ip_address("172.30.0.9")))
    stated["n2"] = stated["n1"]  # a second one is no majority
    with pytest.raises(NodeFailed, match=r"leads to 172\.30\.0\.9"):
        Meeting(LOGINS, stated).check("n1", handle(ip_address("172.30.0.9")))


@pytest.mark.parametrize(
    "made",
    [
        handle(ip_address("10.0.0.1"))[:-2] + "01",
        handle(ip_address("10.0.0.1"), port=0),
        handle(ip_address("10.0.0.1")).replace("0200192b", "0100192b"),
        handle(ip_address("2001:db8::1")).replace("192b00000000", "192b00000001"),
        "00" * 128,
    ],
    ids=["more", "no port", "a path", "flow", "zeros"],
)
def test_what_is_none_of_nccls_ids_is_refused(made: str) -> None:
    with pytest.raises(NodeFailed, match="not one of NCCL's; expected a magic number, an IP address, a port"):
        Meeting({"n1": [ip_address("10.0.0.1"), ip_address("2001:db8::1")]}).check("n1", made)


def test_interfaces_that_are_none_are_left_out() -> None:
    stated = ["10.0.0.1/24", "10.0.0.1/99", "x", 5, None, ["10.0.0.2/24"], "1" * 10**6, "2001:db8::1/64"]
    found = interfaces_of({"addresses": stated})
    assert [str(each) for each in found] == ["10.0.0.1/24", "2001:db8::1/64"]
    assert interfaces_of({}) == []


def test_known_addresses_are_those_to_connect_to() -> None:
    nodes = [Target("a", "192.0.2.7", Connection()), Target("b", "no-such-host.invalid", Connection())]
    assert known_addresses(nodes) == {"a": {ip_address("192.0.2.7")}, "b": frozenset()}


def test_only_interfaces_of_hardware_are_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("eth0/device", "bond0/lower_eth0", "bond0.7/lower_bond0", "docker0/lower_veth1", "veth1"):
        (tmp_path / "class/net" / path).mkdir(parents=True)
    addresses = {
        name: [f"10.{place}.0.1/24"] for place, name in enumerate(("eth0", "bond0.7", "docker0", "lo"))
    }
    monkeypatch.setattr(fabric, "interface_addresses", lambda: addresses)
    assert fabric.hardware_addresses(str(tmp_path)) == ["10.1.0.1/24", "10.0.0.1/24"]
