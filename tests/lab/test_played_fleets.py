"""Three nodes of played systems: from bootstrap to an upgrade with a canary, a killed controller, and back.

On RHEL 9 the two drivers are in different streams of one dnf module. The tests build on each other.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from gpuprov.catalog import load
from gpuprov_lab import Lab
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.key import signing_key
from gpuprov_lab.mirror.serve import served
from gpuprov_lab.variants import with_control_groups, with_network_parameters
from tests.campaign._upgrade_faults import at_boot
from tests.lab.dnf_chain import NO_REPOSITORY, REPOSITORIES
from tests.lab.ubuntu_nodes import build_ubuntu
from tests.lab.upgrade_fleet import Fleet, write_locks
from tests.systems import IMAGES, UBUNTU

pytestmark = pytest.mark.slow
NAMES = ["node1", "node2", "node3"]
BROKEN = f"if [ $GPUPROV_NODE = node2 ]; then {at_boot('gpuprov-sim fault gpu-lost 5')}; fi"
"""Hook that lets a GPU of node2 fall off the bus at its next boot."""


@dataclass(frozen=True)
class Case:
    """A system, and what its fleet states.

    Attributes:
        drivers: the older and the newer one.
        stack, settings: further keys of the group.
        cut, mend: commands after which no repository is in reach, and is again.
    """

    system: str
    drivers: tuple[str, str]
    cut: str
    mend: str
    stack: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


PROXY = "/etc/apt/apt.conf.d/99-no-network"
CASES = (
    Case(
        "rhel9",
        ("580.126.16", "595.71.05"),
        cut=NO_REPOSITORY,
        mend=REPOSITORIES,
    ),
    Case(
        "ubuntu26.04",
        ("610.57.04", "615.71.10"),
        cut=f"""echo 'Acquire::http::Proxy "http://127.0.0.1:9";' >{PROXY}; apt-get -q clean""",
        mend=f"rm {PROXY}",
        stack={
            "cuda": "13.4",
            "cudnn": "9.28",
            "nccl": "auto",
            "docker": "auto",
            "podman": "auto",
            "container_toolkit": "1.19",
            "node_exporter": "auto",
        },
        settings={
            "clocks": {"graphics": 1980, "memory": 3201},
            "containers": {"shm_size": "1g", "cgroup_driver": "cgroupfs"},
            "tuning": {"limits": {"nofile": 4096}, "environment": {"OMP_NUM_THREADS": 8}},
            "monitoring": {"textfile": "/var/lib/prometheus/node-exporter"},
            "ssh": {},
            "firewall": {},
        },
    ),
)


@dataclass(frozen=True)
class Played(Fleet):
    """Nodes of a case."""

    case: Case


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.system)
def fleet(
    request: pytest.FixtureRequest, module_lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Played]:
    """Three new nodes, and locks of both drivers."""
    case: Case = request.param
    folder = tmp_path_factory.mktemp("fleet")
    steps = [with_control_groups, with_network_parameters]
    nodes = module_lab.up(gpu="h200x8", os=IMAGES[case.system], names=NAMES, prepare=steps)
    (folder / "profiles").mkdir()
    profile = {"hardware": {"gpu": {"model": "H200 SXM", "count": 8}}, "settings": {"persistence": True}}
    (folder / "profiles/eight.yml").write_text(yaml.safe_dump(profile))
    group = {
        "profile": "eight",
        "os": case.system,
        "hosts": {node.name: node.address for node in nodes},
        # The stubs are modules for any kernel, and a module store accepts none of those.
        "stack": {"repository": "nvidia", "module_build": "dkms", **case.stack},
        "settings": {"kernel": nodes[0].kernel, **case.settings},
    }
    with ExitStack() as stack:
        with signing_key() as key:
            mirror = nvidia.build(folder / "mirror", load(), [case.system], key=key)
            if case.system in UBUNTU:
                build_ubuntu(mirror.root / "ubuntu", nodes[0], key)
        server = stack.enter_context(served(mirror.root))
        urls = {**mirror.urls(server.url), **mirror.others(server.url)}
        if case.system in UBUNTU:
            urls["ubuntu"] = f"{server.url}/ubuntu"
        stated: dict[str, Any] = {
            "ssh": yaml.safe_load(module_lab.fleet("eight"))["ssh"],
            "repositories": {name: {"url": url, "key": str(mirror.key)} for name, url in urls.items()},
            "groups": {"train": group},
        }
        write_locks(folder, stated, case.drivers)
        yield Played(nodes, folder, case)
    module_lab.down()


def test_new_nodes_get_everything_and_a_second_run_changes_nothing(fleet: Played) -> None:
    prepared = fleet.gpuprov("bootstrap")
    assert prepared.returncode == 0, prepared.stdout + prepared.stderr
    assert fleet.gpuprov("plan").returncode == 3
    applied = fleet.gpuprov("apply", "--yes", "--reboot")
    assert applied.returncode == 0, applied.stdout + applied.stderr
    assert applied.stdout.count("rebooted  verified") == len(NAMES), applied.stdout
    assert set(fleet.loaded().values()) == {fleet.case.drivers[0]}
    assert fleet.gpuprov("drift").returncode == 0
    assert "nothing to do" in fleet.gpuprov("apply", "--yes").stderr


def test_the_node_after_the_canary_fails_and_goes_back(fleet: Played) -> None:
    older, newer = fleet.case.drivers
    hooks = {"drain": {"run": BROKEN, "on": "node"}}
    done = fleet.upgrade(newer, canary=["node1"], serial=[1], hooks=hooks)
    assert done.returncode == 1, done.stderr
    assert fleet.ends(done) == {"node1": "new", "node2": "old", "node3": "old"}, done.stdout + done.stderr
    assert "batch 1 failed: node2;" in json.loads(done.stdout)["stopped"]
    assert fleet.loaded() == {"node1": newer, "node2": older, "node3": older}
    back = fleet.gpuprov("rollback", "node1", "--yes", "-o", "json")
    assert fleet.ends(back) == {"node1": "old"}, back.stdout + back.stderr
    assert fleet.wrong() == {}


def test_a_dead_controller_is_resumed_and_every_node_moves_once(fleet: Played) -> None:
    newer = fleet.case.drivers[1]
    trace = fleet.folder / "trace"
    hooks = {"drain": f'echo "out $GPUPROV_NODE" >>{trace}', "resume": f'echo "in $GPUPROV_NODE" >>{trace}'}
    lock = fleet.lock(newer, canary=["node1"], serial=[1], hooks=hooks)
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
    assert set(fleet.loaded().values()) == {newer}
    assert fleet.wrong(lock) == {}


def test_a_rollback_of_all_needs_no_repository(fleet: Played) -> None:
    older = fleet.case.drivers[0]
    for node in fleet.nodes:
        node.run(fleet.case.cut)
    done = fleet.gpuprov("rollback", "--yes", "-o", "json")
    for node in fleet.nodes:
        node.run(fleet.case.mend)
    assert done.returncode == 0, done.stderr
    assert fleet.ends(done) == dict.fromkeys(NAMES, "old"), done.stdout + done.stderr
    assert set(fleet.loaded().values()) == {older}
    assert fleet.wrong(f"{older}.lock.yml") == {}
