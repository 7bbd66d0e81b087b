"""NCCL's network on a node with several interfaces: derived, locked with reasons, written and verified."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuprov.model.lock import read_lock
from gpuprov_lab import Lab, Node
from tests.lab.command_line import gpuprov
from tests.lab.provisioned_node import provision

Fixture = tuple[Node, Path]
FABRIC, BRIDGE, STORAGE = "ens1f0", "docker9", "stor0"


@pytest.fixture(scope="module")
def several(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """Provisioned node with a management port, a RoCE fabric of 100 Gb/s, storage, and a bridge."""
    folder = tmp_path_factory.mktemp("fleet")
    node = provision(module_lab, folder, settings={"nccl": {"NCCL_DEBUG": "WARN"}})
    for name, address in ((FABRIC, "10.9.0.1/24"), (BRIDGE, "172.31.0.1/16"), (STORAGE, "10.8.0.1/24")):
        node.add_interface(name, address)
    return node, folder


def test_what_is_derived_lands_and_is_verified(several: Fixture) -> None:
    node, folder = several
    derived = json.loads(gpuprov(folder, "nccl", "derive", "--write", "-o", "json").stdout)
    [result] = derived["nodes"].values()
    assert result["variables"]["NCCL_SOCKET_IFNAME"]["value"] == f"={FABRIC}"
    gpuprov(folder, "lock")
    [group] = read_lock(folder / "fleet.lock.yml").groups.values()
    setting = group.settings["nccl"]
    assert setting.value == {
        "GLOO_SOCKET_IFNAME": FABRIC,
        "NCCL_CROSS_NIC": "0",
        "NCCL_DEBUG": "WARN",
        "NCCL_IB_DISABLE": "0",
        "NCCL_IB_HCA": "=mlx5_0:1",
        "NCCL_SOCKET_IFNAME": f"={FABRIC}",
    }
    assert "NCCL_IB_HCA: one RoCE port of 100 Gb/s, active" in setting.reason
    assert "NCCL_DEBUG: stated by the site" in setting.reason
    gpuprov(folder, "drift", code=3)
    gpuprov(folder, "apply", "--yes")
    written = node.run("cat /etc/nccl.conf").stdout
    assert f"NCCL_SOCKET_IFNAME=={FABRIC}\n" in written
    gpuprov(folder, "drift")


@pytest.mark.slow
def test_a_file_that_was_changed_is_named_by_both_witnesses(several: Fixture) -> None:
    node, folder = several
    node.run("sed -i 's/NCCL_SOCKET_IFNAME=.*/NCCL_SOCKET_IFNAME=eth0/' /etc/nccl.conf")
    assert "nccl.configuration" in gpuprov(folder, "drift", "-o", "json", code=3).stdout
    verdict = json.loads(gpuprov(folder, "verify", "-o", "json", code=1).stdout)
    [result] = verdict["nodes"]
    assert [c["check"] for c in result["checks"] if c["status"] == "failed"] == ["nccl.configuration"]
    gpuprov(folder, "apply", "--yes")
    gpuprov(folder, "drift")


def test_a_value_of_the_sites_that_names_nothing_is_refused(several: Fixture) -> None:
    _, folder = several
    result = gpuprov(folder, "nccl", "derive", "-e", "NCCL_SOCKET_IFNAME==ib0", code=1).stdout
    assert "NCCL_SOCKET_IFNAME==ib0 fits no interface of the node" in result
