"""Nodes that play other systems, without a controller: by cloud-init, as an image, and by themselves.

cloud-init is Debian's own, with its class for the system. What such nodes do not show is in docs/proof.md.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.catalog import load
from gpuprov.inventory.exports.cloud_init import LIMIT
from gpuprov_lab import Lab, Node, simulator
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.key import signing_key
from gpuprov_lab.mirror.serve import MirrorServer, served
from gpuprov_lab.tree import Tree, tree
from gpuprov_lab.variants import with_cloud_init, with_control_groups
from tests.lab.cloud_node import MACHINE, PROFILE, await_state, base_kernel, journal, state
from tests.lab.command_line import gpuprov
from tests.lab.conftest import fresh_lab_name
from tests.lab.image_tree import left_for_the_first_boot
from tests.lab.local_node import FOLDER, LocalNode
from tests.lab.package_index import build_index, obtained
from tests.lab.ubuntu_nodes import build_ubuntu
from tests.systems import IMAGES, OF_DNF

pytestmark = pytest.mark.slow
STACK = {"repository": "nvidia", "nccl": "auto", "docker": "28.5", "container_toolkit": "1.19.0"}
EXPORTER = {"node_exporter": "auto"}
SETTINGS = {
    "containers": {"cgroup_driver": "cgroupfs", "shm_size": "1g"},
    "monitoring": {"textfile": "/var/lib/prometheus/node-exporter"},
    "tuning": {"limits": {"nofile": 4096}, "environment": {"OMP_NUM_THREADS": "8"}},
}
LOADED = "grep -oE '[0-9]{3}[.][.0-9]+' /proc/driver/nvidia/version | head -1"
CARRIED = "/etc/gpuprov/fleet.lock.yml"
PROGRAM = "/opt/gpuprov/bin/gpuprov"
PYTHONS = ("python3.13", "python3.12", "python3.11")
APPLY = f"{PROGRAM} apply --image train --lock /root/fleet.lock.yml --yes 2>&1"
VERIFY = f"{PROGRAM} verify --image train --lock /root/fleet.lock.yml"
INSTALL = (
    "{python} -m venv /opt/gpuprov && /opt/gpuprov/bin/pip install -q --no-cache-dir --no-index"
    " --find-links {folder} {folder}/gpuprov-*.whl"
)


@dataclass(frozen=True)
class Played:
    """Differences between the systems.

    Attributes:
        distro: cloud-init's class for the system.
        stack: components that its repositories have, or have in another version.
        python: program that runs gpuprov, and its package.
        added: packages that the first boot has to install for it.
        version: of this Python on the played node.
        drivers: the driver before and after the upgrade.
        install: commands that install this Python.
    """

    distro: str
    stack: dict[str, str] = field(default_factory=lambda: EXPORTER)
    python: str = "python3.12"
    added: tuple[str, ...] = ()
    version: tuple[int, int] = (3, 11)
    drivers: tuple[str, str] = ("580.126.16", "595.71.05")
    install: str = "command -v {python} >/dev/null || dnf -q -y install {python}"


UBUNTU = "ubuntu26.04"
SYSTEMS = {
    "rhel8": Played("rocky", added=("python3.12",)),
    "rhel9": Played("rocky"),
    "rhel10": Played("rocky", python="python3", version=(3, 13)),
    "amzn2023": Played("amazon", {"docker": "25.0"}),
    UBUNTU: Played(
        "ubuntu",
        {**EXPORTER, "docker": "auto"},
        python="python3",
        version=(3, 13),
        drivers=("610.57.04", "615.71.10"),
        install="apt-get -q update && apt-get -q -y install --no-install-recommends python3-venv",
    ),
}


@dataclass(frozen=True)
class Site:
    """A folder with a mirror and a Python package index, and their server."""

    system: str
    folder: Path
    mirror: nvidia.Mirror
    server: MirrorServer

    @property
    def played(self) -> Played:
        """The row of the system."""
        return SYSTEMS[self.system]

    @property
    def image(self) -> str:
        """The lab's image of the system."""
        return IMAGES[self.system]

    def fleet(self, hosts: Any, **stack: str) -> dict[str, Any]:
        """Return a fleet of these hosts."""
        urls = {**self.mirror.urls(self.server.url), **self.mirror.others(self.server.url)}
        urls["ubuntu"] = f"{self.server.url}/ubuntu"
        key = str(self.mirror.key)
        group = {
            "profile": PROFILE,
            "os": self.system,
            "hosts": hosts,
            "stack": {**STACK, "driver": self.played.drivers[0], **self.played.stack, **stack},
            "settings": {"kernel": base_kernel(self.image), **SETTINGS},
        }
        repositories = {name: {"url": url, "key": key} for name, url in urls.items()}
        return {"groups": {"train": group}, "repositories": repositories}

    def lock(self, fleet: dict[str, Any], name: str = "fleet.lock.yml") -> Path:
        """Write and lock a fleet; return the lock's path."""
        (self.folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
        gpuprov(self.folder, "lock", "--lock", name)
        return self.folder / name

    def wheels(self, place: Path) -> None:
        """Copy the index's wheels to a folder of a node."""
        place.mkdir(parents=True)
        for wheel in self.mirror.root.glob("**/*.whl"):
            shutil.copy(wheel, place)

    def installation(self, folder: str) -> str:
        """Return the commands that install gpuprov from the wheels in a folder of a node."""
        python = self.played.python
        first = self.played.install.format(python=python)
        return f"({first}) && {INSTALL.format(python=python, folder=folder)}"


def test_each_played_system_has_a_row() -> None:
    assert set(SYSTEMS) == {*OF_DNF, UBUNTU}


@pytest.fixture(scope="module", params=SYSTEMS)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("alone")
    build_index(folder / "mirror", SYSTEMS[request.param].version)
    # The gateway's address exists only while there are nodes, and locks are made before those of a test.
    with ExitStack() as stack, Lab(fresh_lab_name()) as other, signing_key() as key:
        [node] = other.up(1, os=IMAGES[request.param])
        mirror = nvidia.build(folder / "mirror", load(), [request.param], key=key)
        if request.param == UBUNTU:
            build_ubuntu(mirror.root / "ubuntu", node, key)
        server = stack.enter_context(served(mirror.root))
        yield Site(request.param, folder, mirror, server)


def in_sync(node: Node) -> None:
    """Check that drift and verify of the lock on the node have no complaint."""
    for verb in ("drift", "verify"):
        said = node.run(f"{PROGRAM} {verb} --lock {CARRIED} here", check=False)
        assert said.returncode == 0, said.stdout + said.stderr


def test_cloud_init_brings_a_new_server_to_its_lock(lab: Lab, site: Site) -> None:
    site.lock(site.fleet("cloud[1-2]"))
    words = obtained(site.mirror.root, site.server.url)
    own = ("--lock-url", f"{site.server.url}/own.lock.yml", "--lock-out", f"{site.mirror.root}/own.lock.yml")
    exported = gpuprov(site.folder, "inventory", "export", "cloud-init", "train", *words, *own)
    data = exported.stdout.encode()
    assert len(data) <= LIMIT
    steps = [with_control_groups, with_cloud_init(data, site.played.distro)]
    [node] = lab.up(1, os=site.image, gpu=MACHINE, prepare=steps)
    result = await_state(node)
    assert (result["state"], result["exit_code"], result["reboots"]) == ("done", 0, 1), journal(node)
    assert node.run("cloud-init status", check=False).stdout.strip() == "status: done"
    used = f"Using distro class <class 'cloudinit.distros.{site.played.distro}.Distro'>"
    assert used in node.run("cat /var/log/cloud-init.log").stdout
    if site.system in OF_DNF:
        there = [name for name in PYTHONS if node.run(f"rpm -q {name}", check=False).returncode == 0]
        assert there == [*site.played.added]
    in_sync(node)
    node.reboot()
    node.run("systemctl is-system-running --wait", check=False)
    assert state(node)["attempts"] == result["attempts"]


@pytest.fixture(scope="module")
def built(module_lab: Lab, site: Site) -> Iterator[Tree]:
    """A tree with the image applied."""
    path = site.lock(site.fleet("cloud[1-2]", builder="image"))
    with tree(module_lab, site.image) as made:
        simulator.install(made.root, MACHINE)
        site.wheels(made.root / "srv/wheels")
        shutil.copy(path, made.root / "root/fleet.lock.yml")
        made.run(f"{site.installation('/srv/wheels')} && rm -r /srv/wheels")
        said = made.run(f"{APPLY}; echo exit $?")
        assert said.endswith("exit 0\n"), said
        yield made


def test_an_image_shows_what_it_can_and_a_second_run_changes_nothing(built: Tree) -> None:
    left_for_the_first_boot(built, VERIFY)
    assert "changed=0" in built.run(APPLY)


def test_a_machine_of_the_image_is_in_sync_after_its_first_boot(module_lab: Lab, built: Tree) -> None:
    name = f"made-{os.getpid()}"
    built.save(name)
    try:
        [node] = module_lab.up(1, gpu=MACHINE, image=name, names=["made"], prepare=[with_control_groups])
        result = await_state(node)
        assert (result["state"], result["exit_code"]) == ("done", 0), journal(node)
        in_sync(node)
    finally:
        module_lab.down()
        module_lab.drop(name)


def test_one_command_on_the_machine_itself_an_upgrade_and_the_way_back(lab: Lab, site: Site) -> None:
    """Type apply, upgrade and rollback on the machine; each reboots it and goes on by itself."""
    [node] = lab.up(1, os=site.image, gpu=MACHINE, names=["own"], prepare=[with_control_groups])
    here = LocalNode(node)
    fleet = site.fleet({node.name: "local"})
    fleet["rollout"] = {"settle_s": 20}
    own = node.root / FOLDER[1:]
    own.mkdir(parents=True)
    drivers = site.played.drivers
    for name, driver in zip(("fleet.lock.yml", "next.lock.yml"), drivers, strict=True):
        fleet["groups"]["train"]["stack"]["driver"] = driver
        shutil.copy(site.lock(fleet, name), own)
    site.wheels(node.root / "opt/wheels")
    node.run(site.installation("/opt/wheels"))
    for words, driver in (
        (("apply", "--local", "--reboot", "--yes"), drivers[0]),
        (("upgrade", "--local", "--to", "next.lock.yml", "--yes"), drivers[1]),
        (("rollback", "--local", "--yes"), drivers[0]),
    ):
        here.alone(*words)
        end = here.await_end(words[0])
        assert end["status"] == "in_sync", end
        assert node.run(LOADED).stdout.strip() == driver
        here.gpuprov("verify", "--local")
        here.gpuprov("drift", "--local")
