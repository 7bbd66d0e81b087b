"""The fleet.yml that a lab writes, and how gpuprov reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprov.errors import InvalidInput
from gpuprov.model.fleet import read_fleet
from gpuprov_lab.handover import fleet_text
from gpuprov_lab.lab import _natural, _valid
from gpuprov_lab.node import Node, load_node


def made(home: Path, name: str, os: str, kernels: list[str]) -> Node:
    """Return a node of the lab whose tree has these kernels."""
    node = Node(name, os, None, f"198.18.0.{len(name) + int(name[-1])}", ("/image",), home / "nodes" / name)
    for kernel in kernels:
        (node.root / "usr/lib/modules" / kernel).mkdir(parents=True)
    return node


def test_nodes_are_grouped_by_system_and_kernel(tmp_path: Path) -> None:
    nodes = [
        made(tmp_path, "node1", "debian12", ["6.1.0-9-amd64", "6.1.0-56-amd64"]),
        made(tmp_path, "node2", "debian12", ["6.1.0-56-amd64"]),
        made(tmp_path, "node3", "debian13", ["6.12.117+deb13-amd64"]),
        made(tmp_path, "node4", "debian12", ["6.1.0-50-amd64"]),
    ]
    path = tmp_path / "fleet.yml"
    path.write_text(fleet_text(nodes, "base", tmp_path / "id", tmp_path / "known"))
    fleet = read_fleet(path)
    assert {name: list(group.hosts) for name, group in fleet.groups.items()} == {
        "debian12": ["node1", "node2"],
        "debian13": ["node3"],
        "debian12-2": ["node4"],
    }
    assert fleet.groups["debian12"].settings.kernel == "6.1.0-56-amd64"
    assert fleet.groups["debian12"].hosts["node1"] == "198.18.0.6"
    assert fleet.ssh.known_hosts == str(tmp_path / "known")


@pytest.mark.parametrize(
    ("os", "system"),
    [("debian12", "debian12"), ("debian13-minimal", "debian13"), ("ubuntu26.04-played", "ubuntu26.04"),
     ("rocky8-played", "rhel8"), ("rocky9-played", "rhel9"), ("rocky10-played", "rhel10"),
     ("amazon2023-played", "amzn2023")],
)  # fmt: skip
def test_a_mirror_is_stated_for_the_system_that_a_node_plays(os: str, system: str, tmp_path: Path) -> None:
    node = made(tmp_path, "node1", os, ["6.1.0-9-amd64"])
    (tmp_path / "mirror.asc").write_text("key")
    mirror = {
        "nvidia": {"url": "http://198.18.0.1:8080/{folder}/{arch}/", "key": str(tmp_path / "mirror.asc")}
    }
    path = tmp_path / "fleet.yml"
    path.write_text(fleet_text([node], "base", tmp_path / "id", tmp_path / "known", mirror))
    fleet = read_fleet(path)
    assert fleet.groups[system].os == system
    assert fleet.groups[system].stack.repository == "nvidia"
    assert fleet.repositories["nvidia"].url == mirror["nvidia"]["url"]


def test_a_node_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    node = made(tmp_path, "node1", "debian12", [])
    node.record()
    assert load_node(node.folder) == node


def test_a_folder_without_a_record_is_an_incomplete_node(tmp_path: Path) -> None:
    assert not load_node(tmp_path / "node1").complete


@pytest.mark.parametrize("name", ["", "A", "-a", "a-", "a_b", "a/b", "x" * 31])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot name a lab"):
        _valid(name, "lab")


def test_node10_comes_after_node9() -> None:
    assert sorted(["node10", "node9", "node1"], key=_natural) == ["node1", "node9", "node10"]
