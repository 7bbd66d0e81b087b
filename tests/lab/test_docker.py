"""Docker and the container toolkit on a real node: Debian's dockerd, the mirror's toolkit, real containers.

The tests build on each other: one node gets containers with GPUs, is broken, corrected and changed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gpuprov.apply.context import Options
from gpuprov.apply.remote import same
from gpuprov.catalog import load
from gpuprov.model.lock import Component
from gpuprov.upgrade.managed import managed
from gpuprov.upgrade.remote import act
from gpuprov_lab import Lab
from gpuprov_lab.mirror.nvidia import build
from gpuprov_lab.variants import with_control_groups, with_network_parameters
from tests.lab.guide_lines import container_line
from tests.lab.marks import slow_ones
from tests.lab.node_under_test import TRANSACTION
from tests.lab.stub_driver_node import StubDriverNode, component, drive

ROLES = ("container_toolkit", "docker")
AREAS = ("container_toolkit.", "docker.")
TOOLKIT = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
NEW, OLD = "1.19.0-1", "1.18.1-1"
# This machine may forbid root to raise hard limits, so nodes get smaller ones than "unlimited".
DEFAULTS = {"shm_size": "1g", "memlock": 4194304, "stack": 67108864, "cgroup_driver": "cgroupfs"}
SITES_OWN = {"log-driver": "local", "runtimes": {"crun": {"path": "/usr/bin/crun"}}, "exec-opts": ["a=b"]}
CONFIG = "/etc/docker/daemon.json"
HOOK = "/etc/apt/apt.conf.d/99hand"
RUN = "docker run --detach --interactive"
IMAGE = "tar -ch /bin/sh $(ldd /bin/sh | grep -o '/[^ ]* ') | docker import - asked"
ALL = "/dev/nvidia0 /dev/nvidia1 /dev/nvidia2 /dev/nvidia3"


@pytest.fixture(scope="module")
def driven(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> StubDriverNode:
    """A node with a mirror, whose lock states Docker, the toolkit and settings; not applied."""
    folder = tmp_path_factory.mktemp("containers")
    mirror = build(folder / "mirror", load([]), [])
    driven = node_with_mirror(module_lab, "debian12", mirror.root, folder)
    driven.state({"containers": DEFAULTS}, **locked(driven, NEW))
    return driven


def node_with_mirror(lab: Lab, system: str, mirror: Path, folder: Path) -> StubDriverNode:
    """Return a node with a stub driver that reads the toolkit's packages from a copy of the mirror."""
    prepare = [with_control_groups, with_network_parameters]  # Docker of Debian 13 sets those of containers
    [node] = lab.up(1, os=system, gpu="a100x4", prepare=prepare)
    shutil.copytree(mirror, node.root / "srv/mirror")
    line = (
        "deb [signed-by=/srv/mirror/keys/mirror.gpg] file:/srv/mirror/libnvidia-container/stable/deb/amd64 /"
    )
    node.run("cat >/etc/apt/sources.list.d/toolkit.list", input=line + "\n")
    drive(node)
    node.run("apt-get -q update")
    return StubDriverNode(lab, node, folder)


def locked(driven: StubDriverNode, toolkit: str, *more: str) -> dict[str, Component]:
    """Return the components Docker and container toolkit, as a lock has them."""
    docker = driven.candidate("docker.io", "containerd", "runc", *more)
    return {"docker": component(docker), "container_toolkit": component(dict.fromkeys(TOOLKIT, toolkit))}


@pytest.mark.slow
def test_check_says_what_would_change_and_changes_nothing(driven: StubDriverNode) -> None:
    before = driven.says("dpkg-query -W; find /etc -newer /srv/mirror -type f | sort")
    outcome, changed = driven.apply(*ROLES, check=True)
    assert outcome.ok, outcome.failed
    assert "Write the merged configuration" in changed
    assert TRANSACTION in changed
    assert driven.says("dpkg-query -W; find /etc -newer /srv/mirror -type f | sort") == before
    assert set(driven.drift("docker.")) == {"docker.packages", "docker.unit", "docker.config"}


def test_fresh_node_gets_docker_whose_containers_see_every_gpu(driven: StubDriverNode) -> None:
    driven.node.run(f"mkdir -p /etc/docker && cat >{CONFIG}", input=json.dumps(SITES_OWN))
    outcome, _ = driven.apply(*ROLES)
    assert outcome.ok, outcome.failed
    config = json.loads(driven.says(f"cat {CONFIG}"))
    assert config["log-driver"] == "local"
    assert config["exec-opts"] == ["a=b", "native.cgroupdriver=cgroupfs"]
    assert config["runtimes"] == {
        "crun": {"path": "/usr/bin/crun"},
        "nvidia": {"path": "nvidia-container-runtime"},
    }
    assert driven.drift(*AREAS) == {}
    assert driven.failed(*AREAS) == {}
    assert driven.says("docker images -q; docker ps -aq") == ""


def test_second_run_changes_nothing(driven: StubDriverNode) -> None:
    assert driven.apply(*ROLES)[1] == []
    assert driven.apply(*ROLES, check=True)[1] == []


def test_numbered_gpus_are_given_as_people_ask_for_them(driven: StubDriverNode) -> None:
    driven.node.run(IMAGE)
    seen = driven.says("docker run --rm --gpus '\"device=0,2\"' asked /bin/sh -c 'echo /dev/nvidia[0-9]*'")
    assert seen == "/dev/nvidia0 /dev/nvidia2"
    assert "unknown device" in driven.says("docker run --rm --gpus device=7 asked /bin/sh -c :")
    assert driven.says(container_line("containers", "docker run --rm --gpus all", "asked")) == ALL


FORERUNNER = """\
mkdir -p /root/old/DEBIAN; cd /root; cat >old/DEBIAN/control <<'END'; dpkg-deb --build old nvidia-docker2.deb
Package: nvidia-docker2
Version: 2.14.0-1
Architecture: all
Maintainer: nobody <nobody@localhost>
Description: what the toolkit replaced
END
"""


# Fault → command, checks in drift and verify, and checks that fail only in verify: without a daemon every
# check that queries it fails.
ASKING = {"docker.daemon", "docker.limits", "docker.gpus", "docker.driver"}
OUTDATED = "{kind: nvidia.com/gpu, path: /dev/nvidia99}"
FAULTS = {
    "on-disk": (
        f"sed -i s/1g/64m/ {CONFIG}; dpkg --remove --force-depends nvidia-container-toolkit;"
        f" dpkg -i /root/nvidia-docker2.deb; mkdir -p /run/cdi; echo '{OUTDATED}' >/run/cdi/nvidia.yaml",
        {
            "docker.config",
            "container_toolkit.packages",
            "container_toolkit.forerunners",
            "container_toolkit.specifications",
        },
        {"docker.limits", "docker.gpus", "docker.driver"},
    ),
    "not-running": (
        "systemctl disable --now docker.socket docker.service; systemctl mask docker;"
        " dpkg --remove --force-depends runc",
        {"docker.unit", "docker.packages"},
        ASKING,
    ),
}


@pytest.mark.parametrize("name", slow_ones(FAULTS, {"not-running", "on-disk"}))
def test_fault_is_seen_by_both_witnesses_and_mended(driven: StubDriverNode, name: str) -> None:
    fault, checks, also_failing = FAULTS[name]
    driven.node.run(FORERUNNER)
    driven.node.run(fault)
    assert set(driven.drift(*AREAS)) == checks
    assert set(driven.failed(*AREAS)) == checks | also_failing
    outcome, _ = driven.apply(*ROLES)
    assert outcome.ok, outcome.failed
    assert driven.failed(*AREAS) == {}
    assert driven.apply(*ROLES)[1] == []


def test_what_only_the_site_can_take_back_is_seen_by_both_witnesses(driven: StubDriverNode) -> None:
    unit, config, specification = (
        "/etc/systemd/system/docker.service",
        "/etc/nvidia-container-runtime/config.toml",
        "/etc/cdi/site.yaml",
    )
    driven.node.run(
        f"mkdir -p $(dirname {config}) /etc/cdi; cp /lib/systemd/system/docker.service {unit};"
        f" printf '[nvidia-container-cli]\nno-cgroups = true\n' >{config}; echo '{OUTDATED}' >{specification}"
    )
    found = {
        "docker.unit": "enabled, by another unit file",
        "container_toolkit.config": ["nvidia-container-cli.no-cgroups = true"],
        "container_toolkit.specifications": [f"{specification} names /dev/nvidia99, which does not exist"],
    }
    assert driven.drift(*AREAS) == found
    assert driven.failed(*AREAS) == found
    driven.node.run(f"rm {unit} {config} {specification}")


def test_configuration_that_is_no_json_is_refused_with_its_place(driven: StubDriverNode) -> None:
    kept = driven.says(f"cat {CONFIG}")
    driven.node.run(f"cat >{CONFIG}", input='{\n  "log-driver": "local",\n}\n')
    outcome, changed = driven.apply("docker")
    [failed] = outcome.failed
    assert "is not JSON, line 3, column 1: " in failed["msg"]
    assert changed == []
    assert driven.says(f"cat {CONFIG}") == '{\n  "log-driver": "local",\n}'
    driven.node.run(f"cat >{CONFIG}", input=kept + "\n")


def test_configuration_that_the_daemon_refuses_is_taken_back(driven: StubDriverNode) -> None:
    before = driven.says(f"cat {CONFIG}")
    outcome, _ = driven.apply("docker", docker_config={"bip": "nonsense"})
    [failed] = outcome.failed
    assert "its former configuration is in place" in failed["msg"]
    assert driven.says(f"cat {CONFIG}") == before
    assert driven.says("systemctl is-active docker") == "active"
    assert driven.apply("docker")[1] == []


def test_docker_is_not_restarted_under_a_container_with_gpus(driven: StubDriverNode) -> None:
    driven.node.run("docker run -d -i --name trainer --gpus all asked /bin/sh -c 'read x'")
    driven.state({"containers": {**DEFAULTS, "shm_size": "2g"}})
    outcome, changed = driven.apply("docker")
    [failed] = outcome.failed
    assert "has to be restarted, which would end trainer; stop these containers" in failed["msg"]
    assert changed == []
    assert driven.says("docker inspect --format '{{.State.Status}}' trainer") == "running"
    outcome, _ = driven.apply("docker", docker_disturb=True)
    assert outcome.ok, outcome.failed
    driven.node.run("docker rm --force trainer; docker image rm --force asked")
    assert driven.failed("docker.") == {}


def test_changed_lock_changes_the_toolkit_and_docker_learns_of_it(driven: StubDriverNode) -> None:
    driven.state(**locked(driven, OLD))
    assert set(driven.drift("container_toolkit.")) == {"container_toolkit.packages"}
    outcome, _ = driven.apply(*ROLES)
    assert "would downgrade packages" in outcome.failed[0]["msg"]
    outcome, changed = driven.apply(*ROLES, packages_allow_downgrade=True)
    assert outcome.ok, outcome.failed
    assert "Install, replace and remove packages, in one transaction" in changed
    assert "Run the daemon, now and at every boot" in changed
    assert driven.failed(*AREAS) == {}


def test_defaults_that_the_lock_states_no_more_go_and_the_sites_own_stay(driven: StubDriverNode) -> None:
    driven.state({"containers": {}})
    assert driven.apply("docker")[0].ok
    assert json.loads(driven.says(f"cat {CONFIG}")) == {
        **SITES_OWN,
        "runtimes": {**SITES_OWN["runtimes"], "nvidia": {"path": "nvidia-container-runtime"}},
    }
    assert driven.apply("docker")[1] == []


def running(driven: StubDriverNode) -> str:
    """Return the names of the running containers."""
    return driven.says("docker ps --format '{{.Names}}'")


def version(driven: StubDriverNode) -> str:
    """Return the version of the package docker.io."""
    return driven.says("dpkg-query -W -f '${Version}' docker.io")


def test_docker_is_not_restarted_under_any_container(driven: StubDriverNode) -> None:
    driven.node.run(IMAGE)
    driven.node.run(f"{RUN} --name database -v db:/data asked /bin/sh -c 'echo precious >/data/db; read x'")
    driven.state({"containers": DEFAULTS})
    outcome, changed = driven.apply("docker")
    assert "has to be restarted, which would end database; stop these" in outcome.failed[0]["msg"]
    assert (changed, running(driven)) == ([], "database")


@pytest.mark.slow
def test_daemon_that_does_not_answer_counts_as_in_use(driven: StubDriverNode) -> None:
    driven.node.run("systemctl kill --kill-whom=main --signal=STOP docker.service")
    outcome, changed = driven.apply("docker")
    driven.node.run("systemctl kill --kill-whom=main --signal=CONT docker.service")
    [failed] = outcome.failed
    assert "not report which containers that would end: `docker ps` gave no answer in 20 s" in failed["msg"]
    assert (changed, running(driven)) == ([], "database")


@pytest.mark.slow
def test_restart_that_containers_outlive_is_done(driven: StubDriverNode) -> None:
    state = "docker inspect --format '{{.State.StartedAt}} {{.State.Status}}' database"
    config = json.loads(driven.says(f"cat {CONFIG}"))
    driven.node.run(f"cat >{CONFIG}", input=json.dumps({**config, "live-restore": True}))
    driven.node.run("systemctl reload docker; sleep 2")
    before = driven.says(state)
    outcome, changed = driven.apply("docker")
    assert outcome.ok, outcome.failed
    assert "Run the daemon, now and at every boot" in changed
    assert (driven.says(state), running(driven)) == (before, "database")
    config = json.loads(driven.says(f"cat {CONFIG}"))
    driven.node.run(f"cat >{CONFIG}", input=json.dumps({**config, "live-restore": False}))
    driven.node.run("systemctl reload docker; sleep 2")


REPACKED = """\
mkdir -p /srv/docker && cd /srv/docker && apt-get -q download docker.io && dpkg-deb -R docker.io_*.deb new
sed -i 's/^Version: .*/&+site1/' new/DEBIAN/control && rm docker.io_*.deb
dpkg-deb -Znone --build new docker.deb && { dpkg-deb -f docker.deb; echo "Filename: ./docker.deb"
echo "Size: $(stat -c %s docker.deb)"; echo "SHA256: $(sha256sum docker.deb | cut -d' ' -f1)"; } >Packages
echo 'deb [trusted=yes] file:/srv/docker ./' >/etc/apt/sources.list.d/docker-site.list; apt-get -q update
"""
"""A newer docker.io: Debian's package with another version."""


@pytest.mark.slow
def test_container_that_starts_while_packages_are_fetched_is_not_ended(driven: StubDriverNode) -> None:
    assert "would end database" in driven.apply("docker")[0].failed[0]["msg"]
    driven.node.run("docker rm --force database")
    driven.node.run(REPACKED)
    driven.state(docker=component(driven.candidate("docker.io", "containerd", "runc")))
    late = f"docker inspect late >/dev/null 2>&1 || {RUN} --name late asked /bin/sh -c 'read x'"
    driven.node.run("cat >/root/late && chmod 755 /root/late", input=f"#!/bin/sh\n{late}\n")
    driven.node.run(f"cat >{HOOK}", input='APT::Update::Post-Invoke {"/root/late";};\n')
    outcome, _ = driven.apply("docker")
    driven.node.run(f"rm {HOOK}")
    assert "that would end late, started meanwhile" in outcome.failed[0]["msg"]
    assert running(driven) == "late"
    driven.node.run("docker rm --force late")


DATABASE = "cat /var/lib/docker/volumes/db/_data/db"


@pytest.mark.slow
def test_database_in_a_volume_survives_another_version_and_the_way_back(driven: StubDriverNode) -> None:
    old, new = version(driven), driven.candidate("docker.io")["docker.io"]
    name, about, options = [driven.node.name], managed(driven.group, driven.group), Options()
    recorded = act(driven.lock, "record", same(name, "run-1", "lock", about), options, holds=None)
    assert recorded[name[0]]["packages"]["docker.io"][0] == old != new
    outcome, _ = driven.apply("docker")
    assert outcome.ok, outcome.failed
    assert (version(driven), driven.says(DATABASE)) == (new, "precious")
    act(driven.lock, "seal", same(name, "run-1"), options, holds=None)
    restored = act(driven.lock, "restore", same(name, "run-1", None, about), options, holds=None, seconds=600)
    assert "docker.io" in restored[name[0]]["packages"]
    assert (version(driven), driven.says(DATABASE)) == (old, "precious")


@pytest.mark.slow
def test_database_in_a_volume_survives_docker_and_containerd(driven: StubDriverNode) -> None:
    driven.state({"containers": None}, docker=None, container_toolkit=None)
    for absent in (("docker",), ("docker", "containerd")):
        driven.rule_out(*absent)
        outcome, _ = driven.apply("docker", "containerd")
        assert outcome.ok, outcome.failed
        assert driven.drift("docker.", "containerd.") == {}
        assert driven.apply("docker", "containerd")[1] == []
    assert driven.says("dpkg-query -W -f '${db:Status-Abbrev}' docker.io") == "rc"
    assert driven.says(DATABASE) == "precious"
    driven.node.run(f"cat >{CONFIG}", input='{"exec-opts": ["native.cgroupdriver=cgroupfs"]}')
    driven.node.run("apt-get -q -y install --no-install-recommends docker.io")
    seen = driven.says("docker run --rm -v db:/data asked /bin/sh -c 'read x </data/db; echo $x'")
    assert seen == "precious"


@pytest.mark.slow
def test_docker_of_debian_13_gives_gpus_by_the_device_interface_as_well(lab: Lab, tmp_path: Path) -> None:
    mirror = build(tmp_path / "mirror", load([]), [])
    driven = node_with_mirror(lab, "debian13", mirror.root, tmp_path)
    driven.state({"containers": {"cdi": True}}, **locked(driven, "1.20.0-1", "docker-cli"))
    outcome, _ = driven.apply(*ROLES)
    assert outcome.ok, outcome.failed
    assert driven.drift(*AREAS) == {}
    assert driven.failed(*AREAS) == {}
    assert driven.apply(*ROLES)[1] == []
    driven.node.run(IMAGE)
    seen = driven.says(container_line("containers", "docker run --rm --device", "asked"))
    assert seen == ALL
    driven.node.run("rm /run/cdi/nvidia.yaml; systemctl disable --now nvidia-cdi-refresh.path")
    disabled = "disabled, but nvidia-cdi-refresh.service is enabled"
    assert driven.drift(*AREAS) == {"container_toolkit.cdi": disabled, "container_toolkit.devices": 0}
    assert set(driven.failed(*AREAS)) == {*driven.drift(*AREAS), "docker.cdi_gpus"}
    assert driven.apply(*ROLES)[0].ok
    assert driven.failed(*AREAS) == {}
    driven.state({"containers": {"cdi": False}})
    assert driven.apply(*ROLES)[0].ok
    assert driven.failed(*AREAS) == {}
    assert driven.says("ls /run/cdi/nvidia.yaml").endswith("No such file or directory")
