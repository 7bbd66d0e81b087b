"""Docker, containerd, NVIDIA's toolkit: packages, configuration, a container that sees limits and GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuprov.expectations.containers import CDI_UNIT, CONTAINERD_UNIT, DOCKER_UNIT, FORERUNNERS
from gpuprov.model.lock import LockedGroup
from gpuprov.verify.modules.containers import CDI, HOOK, NOTHING
from gpuprov.verify.readings import unit_state

if TYPE_CHECKING:
    from gpuprov.verify.modules import Node

JOURNAL = f"journalctl -u {DOCKER_UNIT} -n 10 --no-pager"
CONFIG = "cat /etc/docker/daemon.json"
CONTAINERD = f"journalctl -u {CONTAINERD_UNIT} -n 10 --no-pager"


@pytest.mark.check("container_toolkit.packages")
def test_toolkit_is_the_locked_one(host: Node, expected: dict[str, str]) -> None:
    assert {name: host.apt.versions.get(name) for name in expected} == expected


@pytest.mark.check("container_toolkit.forerunners")
def test_toolkits_forerunners_are_gone(host: Node, expected: list[str]) -> None:
    assert [name for name in FORERUNNERS if name in host.apt.versions] == expected


@pytest.mark.check("container_toolkit.cdi", f"systemctl status {CDI_UNIT}", "nvidia-ctk cdi list")
def test_cdi_specification_is_kept_up_to_date(host: Node, expected: str) -> None:
    assert unit_state(host, CDI_UNIT) == expected


@pytest.mark.check("containerd.packages")
def test_containerd_is_the_locked_one(host: Node, expected: dict[str, str]) -> None:
    assert {name: host.apt.versions.get(name) for name in expected} == expected


@pytest.mark.check("containerd.unit", CONTAINERD)
def test_containerd_runs_now_and_at_every_boot(host: Node, expected: str) -> None:
    assert unit_state(host, CONTAINERD_UNIT) == expected


@pytest.mark.check("containerd.config", CONTAINERD)
def test_containerd_makes_of_its_files_what_the_lock_says(host: Node, expected: dict[str, Any]) -> None:
    plugins = host.containers.containerd_config.get("plugins", {})
    # Its name from 2.0 on, and before; there is no table of a plugin that is switched off.
    table = plugins.get("io.containerd.cri.v1.runtime") or plugins.get("io.containerd.grpc.v1.cri") or {}
    assert {key: _of(table.get(key, False), value) for key, value in expected.items()} == expected


@pytest.mark.check("containerd.plugin", CONTAINERD)
def test_kubernetes_can_talk_to_containerd(host: Node, expected: str) -> None:
    assert host.containers.containerd_plugins.get("cri", "missing") == expected


@pytest.mark.check("docker.packages")
def test_docker_is_the_locked_one(host: Node, expected: dict[str, str]) -> None:
    assert {name: host.apt.versions.get(name) for name in expected} == expected


@pytest.mark.check("docker.unit", JOURNAL)
def test_docker_runs_now_and_at_every_boot(host: Node, expected: str) -> None:
    assert unit_state(host, DOCKER_UNIT) == expected


@pytest.mark.check("docker.config", CONFIG)
def test_docker_is_told_what_the_lock_says(host: Node, expected: dict[str, Any]) -> None:
    document = host.containers.daemon_config
    assert {key: _of(document.get(key), value) for key, value in expected.items()} == expected


@pytest.mark.check("docker.daemon", "docker info", CONFIG)
def test_running_daemon_has_the_configuration(host: Node, expected: dict[str, Any]) -> None:
    info = host.containers.info
    seen = {
        "cgroup driver": info.get("CgroupDriver"),
        "runtimes": [name for name in expected.get("runtimes", ()) if name in info.get("Runtimes", {})],
        "cdi": bool(info.get("CDISpecDirs")),
    }
    assert {name: seen[name] for name in expected} == expected


@pytest.mark.check("docker.limits", JOURNAL)
def test_container_gets_the_limits(host: Node, group: LockedGroup, expected: dict[str, Any]) -> None:
    inside = host.containers.inside(HOOK if group.components.container_toolkit else NOTHING)
    seen = {"shm_size": inside.shm, "memlock": inside.memlock, "stack": inside.stack}
    assert {name: seen[name] for name in expected} == expected


@pytest.mark.check("docker.gpus", "ls /dev/nvidia*", "nvidia-container-cli info", JOURNAL)
def test_container_sees_every_gpu(host: Node, expected: int) -> None:
    assert len(host.containers.inside(HOOK).gpus) == expected


@pytest.mark.check("docker.cdi_gpus", "nvidia-ctk cdi list", "ls /dev/nvidia*", JOURNAL)
def test_container_sees_every_gpu_by_the_device_interface(host: Node, expected: int) -> None:
    assert len(host.containers.inside(CDI).gpus) == expected


def _of(document: Any, wanted: Any) -> Any:
    """What a document says of what is wanted; other keys and items are the site's own."""
    if isinstance(document, dict) and isinstance(wanted, dict):
        return {key: _of(document.get(key), value) for key, value in wanted.items()}
    if isinstance(document, list) and isinstance(wanted, list):
        return [item for item in document if item in wanted]
    return document
