"""Inputs of the derivation from a node's facts and topology."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuprov.cli.nccl import command
from gpuprov.errors import InvalidInput
from gpuprov.nccl.derive import derive
from gpuprov.nccl.inputs import from_facts, gigabits
from gpuprov.nccl.networks import natural
from gpuprov.probe.facts import Facts, Missing
from gpuprov.topology import parse_topology

NICS = [
    {"name": "eno1", "kind": "physical", "state": "up", "speed": "1000", "mtu": "1500", "driver": "igb",
     "addresses": ["192.168.0.5/24", "fe80::1/64"]},
    {"name": "ib0", "kind": "physical", "state": "up", "speed": "400000", "mtu": "4092", "type": "32",
     "addresses": ["10.1.0.5/24"]},
    {"name": "docker0", "kind": "bridge", "state": "down", "speed": "-1", "addresses": ["172.17.0.1/16"]},
]  # fmt: skip
HCAS = [
    {"name": f"mlx5_{index}", "port": "1", "state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)",
     "link_layer": "InfiniBand", "interfaces": [f"ib{index}"]}
    for index in (0, 1)
]  # fmt: skip
TOPOLOGY = """\
\tGPU0\tNIC0\tNIC1\tCPU Affinity
GPU0\t X \tPIX\tSYS\t0-7
NIC0\tPIX\t X \tSYS
NIC1\tSYS\tSYS\t X

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""


def facts(**collectors: object) -> Facts:
    """Return facts with these answers of collectors."""
    return Facts("gpu01", "2026-01-01T00:00:00Z", 0.1, collectors)


def test_names_and_rates_of_a_node_are_text_first() -> None:
    assert natural("eth\N{SUPERSCRIPT TWO}") == [(-1, "eth\N{SUPERSCRIPT TWO}")]
    assert natural("eth" + "9" * 5000)[1] == (-1, "9" * 5000)
    assert natural("mlx5_10") > natural("mlx5_2")
    assert gigabits("1.2.3 Gb/sec") == 0.0


def test_a_node_with_infiniband() -> None:
    nics, hcas = from_facts(facts(nics=NICS, hcas=HCAS), parse_topology(TOPOLOGY))
    assert [(hca.rate, hca.gpu_distance) for hca in hcas] == [(400.0, 2), (400.0, 6)]
    derived = derive(nics, hcas)
    assert derived.environment["NCCL_SOCKET_IFNAME"] == "=ib0"
    assert derived.environment["NCCL_IB_HCA"] == "=mlx5_0:1"
    assert derived.excluded["mlx5_1:1"].startswith("has no GPU near it")


def test_without_topology_all_ports_are_rails() -> None:
    assert derive(*from_facts(facts(nics=NICS, hcas=HCAS))).environment["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"


def test_a_node_that_did_not_tell() -> None:
    with pytest.raises(Missing, match="nics: timed out"):
        from_facts(facts(nics={"error": "timed out"}, hcas=[]))


@pytest.mark.parametrize(
    ("rate", "value"), [("400 Gb/sec (4X NDR)", 400), ("2.5 Gb/sec (1X SDR)", 2.5), ("", 0)]
)
def test_rates(rate: str, value: float) -> None:
    """Check the Gbit/s that are read from a port's rate."""
    assert gigabits(rate) == value


def run(*arguments: str) -> tuple[int, dict[str, dict[str, object]]]:
    """Run `gpuprov nccl derive`; return its exit code and JSON document."""
    result = CliRunner().invoke(command, ["derive", "-o", "json", *arguments], standalone_mode=False)
    if result.exception:
        raise result.exception
    return int(result.return_value), json.loads(result.stdout)


def save(folder: Path, host: str, **collectors: object) -> str:
    """Write the facts of a host to a file, and return its path."""
    path = folder / f"{host}.json"
    answer = {**facts(**collectors).to_answer(), "host": host}
    path.write_text(json.dumps(answer))
    return str(path)


def test_the_verb_names_the_odd_node(tmp_path: Path) -> None:
    files = [save(tmp_path, f"gpu0{i}", nics=NICS, hcas=HCAS) for i in (1, 2)]
    files.append(save(tmp_path, "gpu03", nics=NICS[:1], hcas=[]))
    code, document = run(*files)
    assert code == 1
    assert list(document["nodes"]) == ["gpu01", "gpu02", "gpu03"]
    assert "gpu03: NCCL_IB_DISABLE is 1, 0 on 2 others" in {entry["text"] for entry in document["group"]}  # type: ignore[index]


def test_the_verb_lets_the_site_win(tmp_path: Path) -> None:
    code, document = run(save(tmp_path, "gpu01", nics=NICS, hcas=[]), "--site", "NCCL_SOCKET_IFNAME==eno1")
    stated = document["nodes"]["gpu01"]["variables"]["NCCL_SOCKET_IFNAME"]  # type: ignore[index]
    assert (code, stated["value"], stated["site"]) == (0, "=eno1", True)


def test_the_verb_refuses_what_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello")
    with pytest.raises(InvalidInput, match="not JSON"):
        run(str(tmp_path / "x"))
