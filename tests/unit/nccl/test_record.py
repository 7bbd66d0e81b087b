"""Derived values in the lock: each variable with its reason; the site's own values override them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gpuprov.cli.common.group import run
from gpuprov.errors import InvalidInput
from gpuprov.locking.network import with_network
from gpuprov.model.fleet import parse_fleet, read_fleet
from gpuprov.model.lock import Setting
from gpuprov.nccl import live
from gpuprov.nccl.derive import Derived, derive
from gpuprov.nccl.networks import NetworkInterface
from gpuprov.nccl.rdma import RdmaPort
from gpuprov.nccl.record import DerivedGroup, NcclRecord, read_record, record_path, write_record
from gpuprov.ssh.transport import Target

FLEET = """\
groups:
  train:
    profile: hgx-h100-8
    hosts: {gpu01: 10.0.0.1, gpu02: 10.0.0.2}
    os: ubuntu24.04
    settings: {nccl: {NCCL_DEBUG: WARN, NCCL_SOCKET_IFNAME: '=eth0'}}
  infer: {profile: inference-l4, hosts: l1, os: ubuntu24.04}
"""


def node(hcas: int = 8) -> Derived:
    """Return the environment of a node with RDMA ports; the site states two variables."""
    nics = [NetworkInterface("eth0", speed=25_000, addresses=("10.0.0.5/24",))]
    ports = [RdmaPort(f"mlx5_{index}", rate=400.0) for index in range(hcas)]
    return derive(nics, ports, {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=eth0"})


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yml"
    path.write_text(FLEET)
    return path


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Node → the answer of the live node."""
    said: dict[str, Any] = {
        "gpu01": node(),
        "gpu02": node(),
        "l1": derive([NetworkInterface("ens5", driver="ena")]),
    }

    def answered(targets: list[Target], site: Any, **_: Any) -> dict[str, Any]:
        assert site["gpu01"]["NCCL_DEBUG"] == "WARN"
        return {target.name: said[target.name] for target in targets}

    monkeypatch.setattr(live, "derive_live", answered)
    return said


def derived(fleet: Path, *words: str) -> int:
    """Run `gpuprov nccl derive --write` for a fleet; return the exit code."""
    return run(["nccl", "derive", *words, "-F", str(fleet), "--write"])


def test_what_nodes_agree_on_is_recorded_and_locked(fleet: Path, answers: dict[str, Any]) -> None:
    assert derived(fleet, "train") == 0
    record = read_record(fleet)
    assert record is not None
    assert record.groups["train"].hosts == ["gpu01", "gpu02"]
    assert "NCCL_SOCKET_IFNAME" not in record.groups["train"].variables  # set by the site, not recorded
    group = read_fleet(fleet).groups["train"]
    stated = Setting(value=group.settings.nccl, reason="", source="fleet.yml")
    locked = with_network({"nccl": stated}, "train", group, record, lambda line: None)["nccl"]
    assert locked.value["NCCL_IB_HCA"].startswith("=mlx5_0:1,mlx5_1:1")
    assert (locked.value["NCCL_SOCKET_IFNAME"], locked.value["NCCL_DEBUG"]) == ("=eth0", "WARN")
    assert "NCCL_IB_HCA: 8 InfiniBand rails of 400 Gb/s, active" in locked.reason
    assert "NCCL_SOCKET_IFNAME: stated by the site" in locked.reason
    assert locked.source == "what its nodes have (gpuprov nccl derive) and fleet.yml"


def test_the_odd_node_is_named_and_nothing_is_written(
    fleet: Path, answers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answers["gpu02"] = node(hcas=7)
    assert derived(fleet, "train") == 1
    assert "NCCL_IB_HCA is" in capsys.readouterr().out
    assert not record_path(fleet).exists()


def test_a_node_that_does_not_answer_keeps_its_group_as_it_was(fleet: Path, answers: dict[str, Any]) -> None:
    from gpuprov.errors import Unreachable

    answers["gpu02"] = Unreachable("no route")
    assert derived(fleet, "train") == 4
    assert not record_path(fleet).exists()


def test_groups_that_were_not_asked_again_stay(fleet: Path) -> None:
    write_record(fleet, {"train": {"gpu01": node()}})
    write_record(fleet, {"infer": {"l1": node(1)}})
    record = read_record(fleet)
    assert record is not None
    assert set(record.groups) == {"train", "infer"}


def test_a_host_that_was_never_asked_is_reported(fleet: Path) -> None:
    write_record(fleet, {"train": {"gpu01": node()}})
    result: list[str] = []
    with_network({}, "train", read_fleet(fleet).groups["train"], read_record(fleet), result.append)
    assert result == ["train: NCCL's network was derived without gpu02; gpuprov nccl derive --write"]


def test_without_a_record_the_sites_own_stand_alone(fleet: Path) -> None:
    assert with_network({}, "train", read_fleet(fleet).groups["train"], None, print) == {}


def test_a_wrong_name_is_said(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check the message for a node or group that does not exist, and for a file of another schema."""
    assert derived(fleet, "nobody") == 2
    assert "no node or group nobody" in capsys.readouterr().err
    record_path(fleet).write_text("schema: other\n")
    with pytest.raises(InvalidInput, match="schema"):
        read_record(fleet)


def test_hosts_of_a_record_are_compared_in_time_of_their_number() -> None:
    fleet = parse_fleet("groups: {train: {profile: p, os: o, hosts: 'n[1-20000]'}}", "fleet.yml")
    record = NcclRecord(groups={"train": DerivedGroup(hosts=[f"x{n}" for n in range(20_000)], variables={})})
    begun = time.process_time()
    with_network({}, "train", fleet.groups["train"], record, lambda line: None)
    assert time.process_time() - begun < 1


def test_a_record_has_as_many_hosts_as_a_fleet_at_most() -> None:
    with pytest.raises(ValidationError, match="at most 100000"):
        DerivedGroup(hosts=["n"] * 100_001, variables={})
