"""Checks of Podman: its defaults for containers, and limits and GPUs in containers of root and of a user."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from gpuprov.verify.observers.podman import CDI

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node

CONFIG = "cat /etc/containers/containers.conf /etc/containers/containers.conf.d/*.conf"
"""Command whose output is shown when a check fails."""
SPECIFICATIONS = "ls -l /etc/cdi /var/run/cdi"


@pytest.mark.check("podman.config", CONFIG)
def test_podman_has_the_locked_defaults(host: Node, expected: dict[str, Any]) -> None:
    """Check the defaults of a new container against the lock; others are ignored."""
    defaults = host.podman_engine.defaults
    assert {name: defaults.get(name) for name in expected} == expected


@pytest.mark.check("podman.readable", "ls -l /etc/hosts /etc/passwd /etc/containers")
def test_a_user_can_read_what_podman_needs(host: Node, expected: list[str]) -> None:
    """Check that no file which Podman reads as its user is closed to users."""
    assert host.podman_engine.closed == expected


@pytest.mark.check("podman.limits", CONFIG)
def test_container_of_root_gets_the_limits(host: Node, expected: dict[str, Any]) -> None:
    """Check the size of /dev/shm and the soft limits memlock and stack inside a container."""
    inside = host.podman_engine.inside()
    seen = {"shm_size": inside.shm, "memlock": inside.memlock, "stack": inside.stack}
    assert {name: seen[name] for name in expected} == expected


@pytest.mark.check("podman.gpus", SPECIFICATIONS, "ls /dev/nvidia*")
def test_container_of_root_sees_every_gpu(host: Node, expected: int) -> None:
    """Check that a container of root with all CDI devices has a device node for each GPU."""
    assert len(host.podman_engine.inside(CDI).gpus) == expected


@pytest.mark.check("podman.driver", SPECIFICATIONS)
def test_container_of_root_gets_the_drivers_library_and_controls(host: Node, expected: str) -> None:
    """Check the driver's library and control devices inside a container of root with all CDI devices."""
    assert host.podman_engine.inside(CDI).driver == expected


@pytest.mark.check("podman.rootless_gpus", SPECIFICATIONS, "ls -l /dev/nvidia*")
def test_container_of_a_user_sees_every_gpu(
    host: Node, expected: int, record_property: Callable[[str, str], None]
) -> None:
    """Check that a container of a user without rights has a device node for each GPU, unless the node forbids
    users containers.
    """
    inside = host.podman_engine.inside_of_user(CDI)
    if isinstance(inside, str):
        record_property("note", f"users have no containers: {inside}")
    assert (expected if isinstance(inside, str) else len(inside.gpus)) == expected
