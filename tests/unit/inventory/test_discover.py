"""Nodes matched with profiles, differences as text, hardware as expectations."""

from __future__ import annotations

import gc
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest

import gpuprov.inventory.discover
from gpuprov.catalog import load
from gpuprov.cli.common.group import run
from gpuprov.drift.judge import judge
from gpuprov.errors import GpuprovError, InvalidInput, Unreachable
from gpuprov.inventory.discover import Identity, Match, kinds, match, names_of, propose, within
from gpuprov.model.connection import Connection
from gpuprov.probe.facts import Facts
from gpuprov.roles.hardware import server as expectations
from gpuprov.ssh.failures import NotThere
from gpuprov_lab.simulator.machines import describe, pci_devices
from tests import RECORDED
from tests.unit.inventory.conftest import MakeLock

Change = Callable[[dict[str, Any]], None]
OS = 'ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04"\n'


def simulated(machine: str, change: Change = lambda raw: None, name: str = "n1") -> Facts:
    """Return the facts of a simulated server, as the probe would return them."""
    about = describe(machine)
    pci = [
        [each["address"], *(f"0x{each[key]}" for key in ("vendor", "device", "class")), "0x0", "0x0", "0", ""]
        for each in pci_devices(machine)
    ]
    nics = about.get("nics", [])
    threads = about.get("threads_per_core", 1)
    raw: dict[str, Any] = {
        "system": {"os_release": OS, "machine": "x86_64", "kernel": "6.8.0"},
        "pci": pci,
        "nics": [
            {"name": nic["name"], "kind": "physical", "state": "up", "speed": str(nic["gbits"] * 1000),
             "type": "1", "addresses": []}
            for nic in nics if "name" in nic
        ],
        "hcas": [
            {"name": nic["hca"], "port": "1", "state": "4: ACTIVE", "rate": f"{nic['gbits']} Gb/sec (4X)",
             "link_layer": nic["link_layer"], "pci": nic["pci"], "interfaces": []}
            for nic in nics if "hca" in nic
        ],
        "cpu": {"model": "x", "logical": 96 * threads, "sockets": 2, "threads_per_core": threads, "numa": {}},
        "memory": {"text": f"MemTotal: {int(about.get('memory_gib', 512) * 1024 * 1024 * 0.985)} kB\n"},
        "disks": [],
        "smi": {"error": "nvidia-smi is not installed"},
    }  # fmt: skip
    change(raw)
    return Facts(name, "2026-01-01T00:00:00Z", 0.1, raw)


def found(machine: str, change: Change = lambda raw: None) -> tuple[str | None, tuple[str, ...]]:
    """Return the nearest profile of a simulated machine with a change, and the differences."""
    result = match(simulated(machine, change), kinds(load()))
    assert result.unknown == ()
    return result.profile, result.differences


@pytest.mark.parametrize(
    ("machine", "profile"),
    [("h100x8", "hgx-h100-8"), ("h200x8", "hgx-h200-8"), ("h200x4", "hgx-h200-4"), ("a100x4", "hgx-a100-4"),
     ("l40sx4", "l40s-4"), ("t4x1", "dev-t4"), ("rtx3080", "dev-rtx3080")],
)  # fmt: skip
def test_a_healthy_server_is_its_profile(machine: str, profile: str) -> None:
    assert found(machine) == (profile, ())


@pytest.mark.parametrize(("machine", "profile"), [("h200x4", "hgx-h200-4"), ("h100x4", "hgx-h100-4")])
def test_four_real_gpus_are_half_a_board(machine: str, profile: str) -> None:
    """Name the profile of a virtual machine with four GPUs and no RDMA port."""
    document = json.loads((RECORDED / f"doctor/{machine}.json").read_text())
    result = match(Facts.from_answer(document), kinds(load()))
    assert result.profile == profile
    assert result.differences == ()


def drop_gpu(raw: dict[str, Any]) -> None:
    """Remove a GPU from the bus."""
    raw["pci"] = [row for row in raw["pci"] if row[0] != "0000:d1:00.0"]


def drop_switch(raw: dict[str, Any]) -> None:
    """Remove an NVSwitch from the bus."""
    raw["pci"] = [row for row in raw["pci"] if row[0] != "0000:05:00.0"]


def drop_drive(raw: dict[str, Any]) -> None:
    """Remove an NVMe drive from the bus."""
    raw["pci"] = [row for row in raw["pci"] if row[0] != "0000:e0:00.0"]


def slow_port(raw: dict[str, Any]) -> None:
    """Reduce the rate of one port to 200 Gbit/s."""
    raw["hcas"][3]["rate"] = "200 Gb/sec (4X HDR)"


def dead_port(raw: dict[str, Any]) -> None:
    """Take the link of one port down."""
    raw["hcas"][0] |= {"state": "1: DOWN", "rate": "10 Gb/sec (4X SDR)"}


def lost_port(raw: dict[str, Any]) -> None:
    """Remove one RDMA port, also from the bus."""
    gone = raw["hcas"].pop()
    raw["pci"] = [row for row in raw["pci"] if row[0] != gone["pci"]]


def one_dimm_less(raw: dict[str, Any]) -> None:
    """Remove 128 GiB of 2 TiB memory."""
    raw["memory"]["text"] = f"MemTotal: {int((2048 - 128) * 1024 * 1024 * 0.985)} kB\n"


def one_socket(raw: dict[str, Any]) -> None:
    """Leave one processor with 96 logical ones."""
    raw["cpu"] |= {"logical": 96, "sockets": 1}


@pytest.mark.parametrize(
    ("change", "words", "check"),
    [
        (drop_gpu, "7 of 8 GPUs (H100 SXM5 80GB)", None),
        (drop_switch, "3 of 4 NVSwitches", "gpu.nvswitches"),
        (drop_drive, "7 of 8 NVMe drives", "hardware.nvme"),
        (slow_port, "7 x 400 Gb/s RDMA, 1 x 200 Gb/s RDMA instead of 8 x 400 Gb/s RDMA", "hardware.nics"),
        (dead_port, "7 x 400 Gb/s RDMA, 1 x down RDMA instead of 8 x 400 Gb/s RDMA", "hardware.nics"),
        (lost_port, "7 x 400 Gb/s RDMA, 1 missing instead of 8 x 400 Gb/s RDMA", "hardware.nics"),
        (one_dimm_less, "1891 GiB memory instead of at least 1966", "hardware.memory_mib"),
        (one_socket, "48 cores instead of 96", "hardware.cpu_cores"),
    ],
)
def test_a_fault_is_named_by_discovery_and_drift(
    change: Change, words: str, check: str | None, locked: MakeLock
) -> None:
    assert found("h100x8", change) == ("hgx-h100-8", (words,))
    group = locked("groups: {x: {profile: hgx-h100-8, hosts: n1, os: ubuntu24.04}}\n").groups["x"]
    assert judge("n1", simulated("h100x8"), expectations(group)).status == "in_sync"
    drifted = judge("n1", simulated("h100x8", change), expectations(group)).drift
    assert [each.check for each in drifted] == ([check] if check else [])


def test_a_port_that_tells_no_speed_is_taken_at_its_word() -> None:
    def silent(raw: dict[str, Any]) -> None:
        raw["hcas"] = []  # the RDMA modules are not loaded yet: the controllers are only on the bus

    assert found("h100x8", silent) == ("hgx-h100-8", ())


def test_sizes_of_drives_count_where_they_are_shown() -> None:
    def small(raw: dict[str, Any]) -> None:
        names = [f"nvme{number}n1" for number in range(8)]
        raw["disks"] = [{"name": name, "type": "disk", "size": 10**12, "tran": "nvme"} for name in names]

    assert found("h100x8", small) == ("hgx-h100-8", ("8.0 TB of NVMe instead of 28",))


def test_what_no_profile_has_is_said() -> None:
    """Check the reason for a node without GPUs, and for GPUs that no profile has."""

    def none(raw: dict[str, Any]) -> None:
        raw["pci"] = []

    assert found("t4x1", none) == (None, ("no NVIDIA GPU on the PCI bus",))
    assert found("v100x4") == (None, ("no profile has these GPUs: 4 x 10de:1db5",))


@pytest.mark.parametrize(
    ("part", "unknown"),
    [
        ("memory", "memory: timed out"),
        ("cpu", "cpu: timed out"),
        ("nics", "nics: timed out"),
        ("hcas", "hcas: timed out"),
    ],
)
def test_what_a_node_does_not_tell_is_unknown_not_missing(part: str, unknown: str) -> None:
    def mute(raw: dict[str, Any]) -> None:
        raw[part] = {"error": "timed out"}

    result = match(simulated("h100x8", mute), kinds(load()))
    assert (result.profile, result.differences, result.unknown) == ("hgx-h100-8", (), (unknown,))


def test_the_table_names_what_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that discover's table names the facts that could not be read."""

    def look(hosts: list[str], *_: Any, **__: Any) -> Iterator[tuple[str, Any]]:
        yield hosts[0], (simulated("t4x1"), Match("dev-t4", ("7 cores instead of 8",), ("nics: timed out",)))

    monkeypatch.setattr(gpuprov.inventory.discover, "match_hosts", look)
    assert run(["inventory", "discover", "n1"]) == 3
    assert "n1    dev-t4   7 cores instead of 8; unknown: nics: timed out\n" in capsys.readouterr().err


def test_facts_of_a_host_are_not_kept_for_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep none: a network has 4,096 addresses, and each host decides how large its facts are."""
    kept: WeakValueDictionary[str, Facts] = WeakValueDictionary()
    most = []

    def look(hosts: list[str], *_: Any, **__: Any) -> Iterator[tuple[str, Any]]:
        for host in hosts:
            gc.collect()
            most.append(len(kept))
            kept[host] = facts = simulated("t4x1", name=host)
            yield host, (facts, Match("dev-t4"))
            del facts

    monkeypatch.setattr(gpuprov.inventory.discover, "match_hosts", look)
    assert run(["inventory", "discover", "n[1-9]"]) == 0
    assert max(most) <= 1


def test_texts_about_a_host_are_limited() -> None:
    found = Match(None, ("x" * 5000,) * 1000, tuple(map(str, range(1000))))
    assert (len(found.differences), len(found.unknown)) == (64, 64)
    assert {len(text) for text in found.differences} == {1000}


def test_a_sites_own_profile_comes_into_question(tmp_path: Path) -> None:
    text = "extends: base\nhardware: {gpu: {model: Tesla V100 SXM2 32GB, count: 4}}\n"
    (tmp_path / "ours.yml").write_text(text)
    assert match(simulated("v100x4"), kinds(load(), [tmp_path])).profile == "ours"


def test_the_proposal_groups_by_profile_and_system() -> None:
    def debian(raw: dict[str, Any]) -> None:
        raw["system"]["os_release"] = 'ID=debian\nVERSION_ID="12"\n'

    facts = {"10.0.0.1": simulated("t4x1"), "10.0.0.2": simulated("t4x1", debian), "c": simulated("h100x8")}
    among = kinds(load())
    names = {"10.0.0.1": "a", "10.0.0.2": "b", "c": "c"}
    both = {host: (Identity.of(each), match(each, among)) for host, each in facts.items()}
    proposal, failed = propose(both, names, Connection(user="ops"), load())
    assert failed == {}
    assert proposal == {
        "groups": {
            "dev-t4": {"profile": "dev-t4", "os": "ubuntu24.04", "hosts": {"a": "10.0.0.1"}},
            "dev-t4-debian12": {"profile": "dev-t4", "os": "debian12", "hosts": {"b": "10.0.0.2"}},
            "hgx-h100-8": {"profile": "hgx-h100-8", "os": "ubuntu24.04", "hosts": "c"},
        },
        "ssh": {"user": "ops"},
    }


def with_system(name: str, version: str, arch: str = "x86_64", host: str = "n1") -> Facts:
    """Return the facts of a server whose system and architecture have these names."""

    def change(raw: dict[str, Any]) -> None:
        raw["system"] |= {"os_release": f'ID={name}\nVERSION_ID="{version}"\n', "machine": arch}

    return simulated("t4x1", change, host)


def test_systems_whose_names_are_those_of_other_groups_take_no_group_from_others() -> None:
    """Choose the systems of three hosts so that every name of the last one's group is another group's."""
    chosen = [with_system("a", "1"), with_system("a", "1-aarch64"), with_system("a", "1", "aarch64")]
    facts = [with_system("ubuntu", "24.04"), *chosen, with_system("debian", "12")]
    found = {f"h{at}": (Identity.of(each), Match("dev-t4")) for at, each in enumerate(facts)}
    proposal, failed = propose(found, {host: host for host in found}, Connection(), load())
    assert failed == {}
    assert {name: group["hosts"] for name, group in proposal["groups"].items()} == {
        "dev-t4": "h0",
        "dev-t4-a1": "h1",
        "dev-t4-a1-aarch64": "h2",
        "dev-t4-a1-aarch64-2": "h3",
        "dev-t4-debian12": "h4",
    }


def test_a_host_that_cannot_be_proposed_is_its_own_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(system: str, _catalog: object) -> str:
        """Fail for the system `bad`."""
        if system == "bad":
            raise RuntimeError(system)
        return "ubuntu24.04"

    monkeypatch.setitem(propose.__globals__, "system_of", broken)
    found = {each: (Identity(each, each, "x86_64"), Match("dev-t4")) for each in ("bad", "good")}
    proposal, failed = propose(found, {"bad": "bad", "good": "good"}, Connection(), load())
    assert proposal["groups"]["dev-t4"]["hosts"] == "good"
    assert list(failed) == ["bad"]
    assert "RuntimeError" in str(failed["bad"])


@pytest.mark.parametrize("machine", ["t4x1", "h100x8"], ids=["in one group", "in two groups"])
def test_of_hosts_with_one_name_the_later_one_is_named(machine: str) -> None:
    facts = {"a@gpu01": simulated("t4x1"), "b@gpu01": simulated(machine), "gpu02": simulated("t4x1")}
    among = kinds(load())
    found = {host: (Identity.of(each), match(each, among)) for host, each in facts.items()}
    names = names_of({host: each.host for host, each in facts.items()})
    proposal, failed = propose(found, names, Connection(), load())
    assert {name: group["hosts"] for name, group in proposal["groups"].items()} == {
        "dev-t4": {"gpu01": "a@gpu01", "gpu02": "gpu02"}
    }
    assert list(failed) == ["b@gpu01"]
    assert str(failed["b@gpu01"]).startswith("its name in the fleet, gpu01, is that of a@gpu01; ")


def test_a_name_as_given_wins_over_a_hosts_own_name() -> None:
    own = {
        "10.0.0.1": "gpu07.example",
        "10.0.0.2": "gpu02",
        "10.0.0.3:2222": "gpu02",
        "2001:db8::1": "gpu02",
        "10.0.0.4": "10-0-0-5",
        "10.0.0.5": "local",
        "10.0.0.6": "_x-",
        "10.0.0.7": "localhost.localdomain",
        "10.0.0.8": "all",
        "ops@gpu07": "other",
    }
    assert names_of(own) == {
        "10.0.0.1": "10.0.0.1",
        "10.0.0.2": "10.0.0.2",
        "10.0.0.3:2222": "10.0.0.3-2222",
        "2001:db8::1": "2001-db8--1",
        "10.0.0.4": "10-0-0-5",
        "10.0.0.5": "10.0.0.5",
        "10.0.0.6": "10.0.0.6",
        "10.0.0.7": "10.0.0.7",
        "10.0.0.8": "10.0.0.8",
        "ops@gpu07": "gpu07",
    }


def test_a_host_takes_no_name_of_another_one_by_stating_it() -> None:
    own = {"10.0.0.1": "GPU07", "10.0.0.2": "gpu07.example", "10.0.0.3": "gpu08"}
    assert names_of(own) == {
        "10.0.0.1": "10.0.0.1",
        "10.0.0.2": "10.0.0.2",
        "10.0.0.3": "gpu08",
    }


def test_hosts_are_names_ranges_and_networks() -> None:
    assert within(["gpu[01-02]", "10.0.0.0/30"]) == (
        ["gpu01", "gpu02", "10.0.0.1", "10.0.0.2"],
        {"10.0.0.1", "10.0.0.2"},
    )
    assert within(["10.0.0.1", "10.0.0.0/30"])[1] == {"10.0.0.2"}
    with pytest.raises(InvalidInput, match="16777216 addresses"):
        within(["10.0.0.0/8"])
    with pytest.raises(InvalidInput, match="not a network"):
        within(["10.0.0.0/99"])


def discover(port: int, *words: str) -> int:
    """Run `gpuprov inventory discover` with a port; return the exit code."""
    return run(["inventory", "discover", *words, "--port", str(port)])


def test_a_network_in_which_nobody_answers_is_said(
    closed_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert discover(closed_port, "127.0.0.0/30") == 4
    result = capsys.readouterr()
    assert result.out == ""
    seen = f"no host answers SSH on port {closed_port} at any of the 2 addresses of 127.0.0.0/30"
    assert result.err == f"gpuprov: {seen}; check the network and --port\n"
    assert discover(closed_port, "127.0.0.0/30", "-o", "json") == 4
    assert json.loads(capsys.readouterr().out)["hosts"] == []


def test_a_host_that_is_named_is_not_passed_over(
    closed_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert discover(closed_port, "127.0.0.9", "127.0.0.0/30") == 4
    assert capsys.readouterr().err == (
        f"127.0.0.9: no SSH on port {closed_port}: connection refused; check the address, and that it is up\n"
    )


def test_a_host_may_have_a_user_and_a_port_of_its_own(
    closed_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inventory", "discover", f"ubuntu@127.0.0.1:{closed_port}"]) == 4
    said = f"ubuntu@127.0.0.1:{closed_port}: no SSH on port {closed_port}: connection refused"
    assert capsys.readouterr().err.startswith(said)
    assert run(["inventory", "discover", "127.0.0.1:22:1"]) == 2
    assert "'127.0.0.1:22:1' has more than one port" in capsys.readouterr().err


def test_a_node_that_refuses_us_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def look(hosts: list[str], *_: Any, **__: Any) -> Iterator[tuple[str, GpuprovError]]:
        yield hosts[0], NotThere("no SSH on port 22: timed out")
        yield hosts[1], Unreachable("root@10.0.0.2 refused every key offered")

    monkeypatch.setattr(gpuprov.inventory.discover, "match_hosts", look)
    assert run(["inventory", "discover", "10.0.0.0/30"]) == 4
    assert capsys.readouterr().err == "10.0.0.2: root@10.0.0.2 refused every key offered\n"


@pytest.fixture
def closed_port() -> int:
    """A port of this machine on which no server listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_a_fleet_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "fleet.yml").touch()
    assert run(["inventory", "discover", "n1", "-F", str(tmp_path / "fleet.yml")]) == 2
