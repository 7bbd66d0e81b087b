"""Simulated nodes: bare ones, and ones that booted with a driver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuprov_lab.simulator.machines import for_node, pci_devices
from gpuprov_lab.simulator.node.files import Files
from gpuprov_lab.simulator.node.places import ROOT_VARIABLE
from tests.unit.lab.simulated_node import KERNEL, Bare, Driven, Simulated


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bare:
    """Function bare(machine) that makes a node with a kernel but no driver, not booted."""

    def make(machine: str) -> Simulated:
        """Return a node of this machine, without a driver and not booted."""
        files = Files(tmp_path)
        files.machine.parent.mkdir(parents=True)
        files.machine.write_text(json.dumps(for_node(machine)))
        for device in pci_devices(machine):
            (files.pci / device["address"]).mkdir(parents=True)
        (tmp_path / "boot").mkdir()
        (tmp_path / f"boot/vmlinuz-{KERNEL}").touch()
        monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
        return Simulated(tmp_path, capsys)

    return make


@pytest.fixture
def driven(bare: Bare) -> Driven:
    """Function driven(machine, version, licence=...) that makes a node booted with a driver."""

    def make(machine: str, version: str = "535.309.01", licence: str = "NVIDIA") -> Simulated:
        """Return a node of this machine that booted with a driver."""
        node = bare(machine)
        node.put_module(version, licence=licence)
        node.put_library(version)
        node.blacklist("nouveau")
        node.reboot()
        return node

    return make
