"""Hardware of simulated servers other than GPUs, and the steps that break it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuprov_lab.simulator.machines import describe, pci_devices
from gpuprov_lab.simulator.node.places import HOME
from gpuprov_lab.simulator.server import (
    FOLDER,
    with_memory,
    with_port_speed,
    without_gpu,
    write_server,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Path of the root tree of an H100 server."""
    for device in pci_devices("h100x8"):
        (tmp_path / HOME / "pci" / device["address"]).mkdir(parents=True)
    write_server(tmp_path, describe("h100x8"))
    return tmp_path


def test_processors_tell_all_that_ps_reads_of_them(root: Path) -> None:
    text = (root / FOLDER / "cpuinfo").read_text()
    assert len(re.findall(r"^processor\s*: \d+$", text, re.M)) == 192
    cores = set(re.findall(r"^physical id\s*: (\d+)$.*?^core id\s*: (\d+)$", text, re.M | re.S))
    assert len(cores) == 96


def test_ports_hang_on_their_pci_devices(root: Path) -> None:
    classes = root / FOLDER / "class"
    assert len(list((classes / "infiniband").iterdir())) == 8
    assert (classes / "infiniband/mlx5_3/ports/1/rate").read_text() == "400 Gb/sec (4X NDR)\n"
    assert str((classes / "net/eth0/device").readlink()) == "/sys/bus/pci/devices/0000:f0:00.0"
    assert (root / HOME / "pci/0000:f0:00.0/net/eth0").is_dir()
    unit = (root / "etc/systemd/system/gpuprov-sim-server.service").read_text()
    assert unit.count("ExecStart=/bin/mount --bind") == 3


def test_steps_break_just_what_they_name(root: Path) -> None:
    """Check that each step changes only its part of the fake sysfs: a GPU, a port's speed, memory."""
    without_gpu("0000:d1:00.0")(root)
    with_port_speed("mlx5_3", 200)(root)
    with_port_speed("eth0", 10)(root)
    with_memory(1024)(root)
    assert not (root / HOME / "pci/0000:d1:00.0").exists()
    classes = root / FOLDER / "class"
    assert (classes / "infiniband/mlx5_3/ports/1/rate").read_text().startswith("200 ")
    assert (classes / "infiniband/mlx5_2/ports/1/rate").read_text().startswith("400 ")
    assert (classes / "net/eth0/speed").read_text() == "10000\n"
    assert "MemTotal:       1057635696 kB" in (root / FOLDER / "meminfo").read_text()


def test_a_machine_that_states_nothing_keeps_the_real_one(root: Path) -> None:
    about = {key: value for key, value in describe("h100x8").items() if key not in ("nics", "memory_gib")}
    write_server(root, about)
    assert not (root / "etc/systemd/system/gpuprov-sim-server.service").exists()
