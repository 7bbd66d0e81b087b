"""Checks of containerd: unit, configuration, and its plugin for Kubernetes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuprov.roles.containerd import CONFIG, CONTAINERD_UNIT
from gpuprov.verify.readings import part_of, reads_elsewhere, unit_state

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node

CONTAINERD = f"journalctl -u {CONTAINERD_UNIT} -n 10 --no-pager"
"""Command whose output is shown when a check fails."""


@pytest.mark.check("containerd.unit", CONTAINERD)
def test_containerd_runs_now_and_at_every_boot(host: Node, expected: str) -> None:
    """Check that containerd's unit is enabled and active."""
    assert unit_state(host, CONTAINERD_UNIT) == expected


@pytest.mark.check("containerd.config", CONTAINERD)
def test_containerd_makes_of_its_files_what_the_lock_says(host: Node, expected: dict[str, Any]) -> None:
    """Check the settings of the CRI plugin in containerd's effective configuration against the lock.

    Other settings are ignored. A missing setting counts as false; all are missing if the plugin is disabled
    or the daemon reads another file.
    """
    document = host.containers.containerd_config
    plugins, off = document.get("plugins", {}), document.get("disabled_plugins", [])
    # The plugin's name from 2.0 on, and before; a disabled plugin has a table only if a file states one.
    names = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
    table: dict[str, Any] = next((plugins[name] for name in names if name in plugins), {})
    if {"cri", *names} & {*off} or reads_elsewhere(host, CONTAINERD_UNIT, CONFIG):
        table = {}
    assert {key: part_of(table.get(key, False), value) for key, value in expected.items()} == expected


@pytest.mark.check("containerd.plugin", CONTAINERD)
def test_kubernetes_can_talk_to_containerd(host: Node, expected: str) -> None:
    """Check that the running containerd has loaded its CRI plugin."""
    assert host.containers.containerd_plugins.get("cri", "missing") == expected
