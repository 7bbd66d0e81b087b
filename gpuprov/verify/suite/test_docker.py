"""Checks of Docker: unit, configuration, and limits and GPUs inside a container."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.docker import CONFIG as CONFIG_FILE
from gpuprov.roles.docker import DOCKER_UNIT
from gpuprov.verify.observers.containers import CDI, HOOK, NOTHING
from gpuprov.verify.readings import part_of, reads_elsewhere, unit_state

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node

JOURNAL = f"journalctl -u {DOCKER_UNIT} -n 10 --no-pager"
"""Commands whose output is shown when a check fails."""
CONFIG = "cat /etc/docker/daemon.json"


@pytest.mark.check("docker.unit", JOURNAL)
def test_docker_runs_now_and_at_every_boot(host: Node, expected: str) -> None:
    """Check that Docker's unit is enabled and active."""
    assert unit_state(host, DOCKER_UNIT) == expected


@pytest.mark.check("docker.config", CONFIG, f"systemctl cat {DOCKER_UNIT}")
def test_docker_has_the_locked_settings(host: Node, expected: dict[str, Any]) -> None:
    """Check that daemon.json has the locked settings; other settings in it are ignored.

    If the daemon reads another file, all settings are missing.
    """
    document = {} if reads_elsewhere(host, DOCKER_UNIT, CONFIG_FILE) else host.containers.daemon_config
    assert {key: part_of(document.get(key), value) for key, value in expected.items()} == expected


@pytest.mark.check("docker.daemon", "docker info", CONFIG)
def test_running_daemon_has_the_configuration(host: Node, expected: dict[str, Any]) -> None:
    """Check that the running daemon reports the locked cgroup driver, runtimes and CDI."""
    info = host.containers.info
    seen = {
        "cgroup driver": info.get("CgroupDriver"),
        "runtimes": [name for name in expected.get("runtimes", ()) if name in info.get("Runtimes", {})],
        "cdi": bool(info.get("CDISpecDirs")),
    }
    assert {name: seen[name] for name in expected} == expected


@pytest.mark.check("docker.limits", JOURNAL)
def test_container_gets_the_limits(host: Node, group: LockedGroup, expected: dict[str, Any]) -> None:
    """Check the size of /dev/shm and the soft limits memlock and stack inside a container."""
    inside = host.containers.inside(HOOK if group.components.container_toolkit else NOTHING)
    seen = {"shm_size": inside.shm, "memlock": inside.memlock, "stack": inside.stack}
    assert {name: seen[name] for name in expected} == expected


@pytest.mark.check("docker.gpus", "ls /dev/nvidia*", "nvidia-container-cli info", JOURNAL)
def test_container_sees_every_gpu(host: Node, expected: int) -> None:
    """Check that a container started with `--gpus all` has a device node for each GPU."""
    assert len(host.containers.inside(HOOK).gpus) == expected


@pytest.mark.check("docker.driver", "nvidia-container-cli list", JOURNAL)
def test_container_gets_the_drivers_library_and_controls(host: Node, expected: str) -> None:
    """Check the driver's library and control devices inside a container started with `--gpus all`."""
    assert host.containers.inside(HOOK).driver == expected


@pytest.mark.check("docker.cdi_gpus", "nvidia-ctk cdi list", "ls /dev/nvidia*", JOURNAL)
def test_container_sees_every_gpu_by_the_device_interface(host: Node, expected: int) -> None:
    """Check that a container started with all CDI devices has a device node for each GPU."""
    assert len(host.containers.inside(CDI).gpus) == expected
