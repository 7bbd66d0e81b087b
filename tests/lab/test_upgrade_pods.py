"""An upgrade of Kubernetes' nodes by the real kubectl: disruption budgets, and cordons of others.

The nodes are real, the API server is a fake one: it knows their pods, and a budget for evictions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gpuprov.upgrade.known_hooks import CORDON
from gpuprov_lab import Lab
from tests.lab.upgrade_fleet import NEWER, OLDER, Fleet, provisioned
from tests.unit.upgrade.kubernetes_api import ApiNode, served

pytestmark = pytest.mark.slow
HOOKS = {"drain": {"use": "kubernetes", "timeout_s": 120}, "resume": {"use": "kubernetes"}}
NAMES = ["node1", "node2"]


class Cluster:
    """Nodes of an upgrade, and what the API server knows about them."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.nodes = {
            name: ApiNode(name, pods={f"trainer-{name}": "ReplicaSet", f"plugin-{name}": "DaemonSet"})
            for name in NAMES
        }

    def changes(self, name: str) -> list[str]:
        """Return the methods of the requests about a node: `PATCH`, or `POST` for an eviction."""
        return [request.split()[0] for request in self.nodes[name].requests]

    def cordons(self) -> dict[str, tuple[bool, str | None]]:
        """Return node → whether it is cordoned, and by which run of gpuprov."""
        return {name: (node.cordoned, node.annotations.get(CORDON)) for name, node in self.nodes.items()}


@pytest.fixture(scope="module")
def cluster(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of provisioned lab nodes, whose fake API server kubectl finds in the environment."""
    fleet = provisioned(module_lab, tmp_path_factory.mktemp("fleet"), len(NAMES))
    assert [node.name for node in fleet.nodes] == NAMES
    cluster = Cluster(fleet)
    own = served(tmp_path_factory.mktemp("kubectl"), *cluster.nodes.values())
    with own as environment, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", environment["KUBECONFIG"])
        patch.setenv("NO_PROXY", environment["NO_PROXY"])
        yield cluster


def test_a_budget_is_waited_for_and_a_node_whose_budget_allows_nothing_is_not_upgraded(
    cluster: Cluster,
) -> None:
    """Cordon the second node as an administrator does, and let its pods not be disrupted at all."""
    first, second = cluster.nodes.values()
    first.refusals, second.refusals = 1, -1
    second.node["spec"]["unschedulable"] = True
    done = cluster.fleet.upgrade(OLDER, hooks=HOOKS)
    assert done.returncode == 1, done.stderr
    assert cluster.fleet.ends(done) == {"node1": "new", "node2": "old"}, done.stdout + done.stderr
    assert cluster.fleet.loaded() == {"node1": OLDER, "node2": NEWER}
    reason = next(node["reason"] for node in json.loads(done.stdout)["nodes"] if node["name"] == "node2")
    assert "trainer-node2" in reason
    assert cluster.changes("node1") == ["PATCH", "POST", "POST", "PATCH"]
    assert set(cluster.changes("node2")) == {"POST"}
    assert [list(node.pods) for node in cluster.nodes.values()] == [
        ["plugin-node1"], ["trainer-node2", "plugin-node2"]
    ]  # fmt: skip
    assert cluster.cordons() == {"node1": (False, None), "node2": (True, None)}


def test_the_node_is_upgraded_once_its_budget_allows_it_and_stays_cordoned(cluster: Cluster) -> None:
    cluster.nodes["node2"].refusals = 0
    done = cluster.fleet.upgrade(OLDER, "node2", hooks=HOOKS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(cluster.fleet.loaded().values()) == {OLDER}
    assert list(cluster.nodes["node2"].pods) == ["plugin-node2"]
    assert cluster.cordons() == {"node1": (False, None), "node2": (True, None)}
