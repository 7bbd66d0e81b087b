"""Three nodes that play Rocky Linux 9: an upgrade with a canary, a killed controller, and the way back.

The two drivers are in different streams of one dnf module. The tests build on each other.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpuprov.catalog import load
from gpuprov_lab import Lab
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.serve import served
from gpuprov_lab.variants import with_control_groups, with_network_parameters
from tests.campaign._upgrade_faults import at_boot
from tests.lab.upgrade_fleet import Fleet, apply, write_locks
from tests.systems import IMAGES

pytestmark = pytest.mark.slow
OLDER, NEWER = "580.126.16", "595.71.05"
NAMES = ["node1", "node2", "node3"]
BROKEN = f"if [ $GPUPROV_NODE = node2 ]; then {at_boot('gpuprov-sim fault gpu-lost 5')}; fi"
"""Hook that lets a GPU of node2 fall off the bus at its next boot."""


@pytest.fixture(scope="module")
def fleet(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three nodes with the older driver, and locks of both."""
    folder = tmp_path_factory.mktemp("rocky")
    mirror = nvidia.build(folder / "mirror", load(), ["rhel9"])
    nodes = module_lab.up(
        gpu="h200x8",
        os=IMAGES["rhel9"],
        names=NAMES,
        prepare=[with_control_groups, with_network_parameters],
    )
    (folder / "profiles").mkdir()
    profile = {"hardware": {"gpu": {"model": "H200 SXM", "count": 8}}, "settings": {"persistence": True}}
    (folder / "profiles/eight.yml").write_text(yaml.safe_dump(profile))
    group = {
        "profile": "eight",
        "os": "rhel9",
        "hosts": {node.name: node.address for node in nodes},
        # The stubs are modules for any kernel, and a module store accepts none of those.
        "stack": {"repository": "nvidia", "module_build": "dkms"},
        "settings": {"kernel": nodes[0].kernel},
    }
    with served(mirror.root) as server:
        urls = {**mirror.urls(server.url), **mirror.others(server.url)}
        stated: dict[str, Any] = {
            "ssh": yaml.safe_load(module_lab.fleet("eight"))["ssh"],
            "repositories": {name: {"url": url, "key": str(mirror.key)} for name, url in urls.items()},
            "groups": {"train": group},
        }
        write_locks(folder, stated, (OLDER, NEWER))
        made = Fleet(nodes, folder)
        apply(made)
        yield made


def test_the_node_after_the_canary_fails_and_goes_back(fleet: Fleet) -> None:
    hooks = {"drain": {"run": BROKEN, "on": "node"}}
    done = fleet.upgrade(NEWER, canary=["node1"], serial=[1], hooks=hooks)
    assert done.returncode == 1, done.stderr
    assert fleet.ends(done) == {"node1": "new", "node2": "old", "node3": "old"}, done.stdout + done.stderr
    assert "batch 1 failed: node2;" in json.loads(done.stdout)["stopped"]
    assert fleet.loaded() == {"node1": NEWER, "node2": OLDER, "node3": OLDER}
    back = fleet.gpuprov("rollback", "node1", "--yes", "-o", "json")
    assert fleet.ends(back) == {"node1": "old"}, back.stdout + back.stderr
    assert fleet.wrong() == {}


def test_a_dead_controller_is_resumed_and_every_node_moves_once(fleet: Fleet) -> None:
    trace = fleet.folder / "trace"
    hooks = {"drain": f'echo "out $GPUPROV_NODE" >>{trace}', "resume": f'echo "in $GPUPROV_NODE" >>{trace}'}
    lock = fleet.lock(NEWER, canary=["node1"], serial=[1], hooks=hooks)
    process = fleet.start("upgrade", "--to", lock, "--yes", "-o", "json")
    while not trace.exists() or "out node2" not in trace.read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    time.sleep(15)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = fleet.gpuprov("upgrade", "--resume", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert fleet.ends(done) == dict.fromkeys(NAMES, "new"), done.stdout + done.stderr
    assert trace.read_text().splitlines() == [f"{way} {name}" for name in NAMES for way in ("out", "in")]
    assert set(fleet.loaded().values()) == {NEWER}
    assert fleet.wrong(lock) == {}


def test_a_rollback_of_all_needs_no_repository(fleet: Fleet) -> None:
    for node in fleet.nodes:
        node.run("echo proxy=http://127.0.0.1:9 >>/etc/dnf/dnf.conf; rm -rf /var/cache/dnf/*/packages")
    done = fleet.gpuprov("rollback", "--yes", "-o", "json")
    for node in fleet.nodes:
        node.run("sed -i /^proxy=/d /etc/dnf/dnf.conf")
    assert done.returncode == 0, done.stderr
    assert fleet.ends(done) == dict.fromkeys(NAMES, "old"), done.stdout + done.stderr
    assert set(fleet.loaded().values()) == {OLDER}
    assert fleet.wrong(f"{OLDER}.lock.yml") == {}
