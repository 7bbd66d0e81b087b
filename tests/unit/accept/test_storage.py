"""Drives and ports: the list from sysfs, the read test of a drive, and the verdicts on both."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprov.accept.judge import judge
from gpuprov.accept.node.storage import BLOCK, drives, measure, ports, rate
from gpuprov.probe.node.base import Failed
from tests.unit.accept.recorded import recorded


def written(place: Path, values: dict[str, str]) -> Path:
    """Write files with these values into a new folder, and return the folder."""
    place.mkdir(parents=True)
    for name, value in values.items():
        (place / name).parent.mkdir(exist_ok=True, parents=True)
        (place / name).write_text(value + "\n")
    return place


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two drives, a partition, another kind of disk; InfiniBand and Ethernet ports, a bridge."""
    pci = tmp_path / "devices/pci0000:00"
    trained = {"current_link_speed": "16.0 GT/s PCIe", "current_link_width": "4"}
    blocks = tmp_path / "block"
    blocks.mkdir()
    for number in (0, 1):
        written(pci / f"0000:0{number}:00.0", trained)
        place = written(pci / f"0000:0{number}:00.0/nvme/nvme{number}/nvme{number}n1", {"size": "7501476528"})
        (blocks / f"nvme{number}n1").symlink_to(place)
    written(blocks / "nvme2n1", {"size": "0"})
    written(blocks / "sda", {"size": "1000"})
    card = {"current_link_speed": "16.0 GT/s PCIe", "current_link_width": "16"}
    for address, slow in (("0000:10:00.0", card), ("0000:11:00.0", {})):
        written(pci / address, slow)
    port = {"rate": "400 Gb/sec (4X NDR)", "state": "4: ACTIVE"}
    written(tmp_path / "class/infiniband/mlx5_0/ports/1", port)
    written(tmp_path / "class/infiniband/mlx5_0/ports/2", {**port, "state": "1: DOWN"})
    (tmp_path / "class/infiniband/mlx5_0/device").symlink_to(pci / "0000:10:00.0")
    for name, speed, device in (
        ("ib0", "400000", "0000:10:00.0"),
        ("eth0", "25000", "0000:11:00.0"),
        ("docker0", "10000", ""),
        ("eth1", "-1", "0000:11:00.0"),
    ):
        place = written(tmp_path / "class/net" / name, {"speed": speed})
        if device:
            (place / "device").symlink_to(pci / device)
    return tmp_path


def test_what_there_is(sysfs: Path) -> None:
    """Check the drives and network ports that are read from sysfs."""
    found = drives(str(sysfs))
    assert [(row["name"], row["bytes"], row["generation"], row["width"]) for row in found] == [
        ("nvme0n1", 7501476528 * 512, 4, 4),
        ("nvme1n1", 7501476528 * 512, 4, 4),
    ]
    assert [(row["name"], row["gbits"], row["pci"], row["width"]) for row in ports(str(sysfs))] == [
        ("mlx5_0/1", 400.0, "0000:10:00.0", 16),
        ("eth0", 25.0, "0000:11:00.0", None),
    ]


def test_a_drive_is_read_for_its_time_and_stays_as_it_is(tmp_path: Path) -> None:
    drive = tmp_path / "drive"
    drive.write_bytes(bytes(range(256)) * (8 * BLOCK // 256))
    drive.chmod(0o400)
    before = drive.stat()
    result = rate(str(drive), 0.3)
    assert result["bytes"] % BLOCK == 0
    assert result["bytes"] >= BLOCK
    assert 0.3 <= result["seconds"] < 5
    assert result["value"] == pytest.approx(result["bytes"] / result["seconds"] / 1e9, rel=0.05, abs=0.001)
    assert drive.stat().st_mtime_ns == before.st_mtime_ns


def test_one_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="No such file or directory"):
        measure("read", ["../" + str(tmp_path / "none"), 0.1])
    (tmp_path / "small").write_bytes(b"x")
    with pytest.raises(Failed, match="1 bytes are too few"):
        rate(str(tmp_path / "small"), 0.1)


def test_drives_and_ports_are_judged() -> None:
    document = recorded("quick")
    link = {"generation": 4, "width": 4}
    rates = {"nvme0n1": 6.9, "nvme1n1": 6.8, "nvme2n1": 6.9, "nvme3n1": 3.1}
    document["host_devices"] = {
        "drives": [{"name": name, "read": {"value": value}, **link} for name, value in rates.items()],
        "ports": [
            {"name": "mlx5_0/1", "gbits": 400.0, "generation": 4, "width": 16},
            {"name": "mlx5_1/1", "gbits": 200.0, "generation": 4, "width": 16},
        ],
    }
    [judged] = judge({"a": document})
    assert [found.text for found in judged.findings if found.rule.startswith(("nvme", "nic"))] == [
        "mlx5_0/1 nic: 400 Gb/s, its PCIe link carries 252: check its slot and the negotiated link",
        "nvme3n1 nvme_read: 3.1 GB/s, the median of 4 is 6.8 (MAD 0.1)",
    ]
    [judged] = judge({"a": document}, {"nvme_read": 6.85, "nic": 400.0})
    slow = [found.text for found in judged.faults if found.rule in ("nvme_read.slow", "nic.slow")]
    assert [text.partition("; at least ")[::2] for text in slow] == [
        ("nvme1n1 nvme_read: 6.8 GB/s, 86% of its PCIe link's 7.878", "6.85 is expected (the site's own)"),
        ("nvme3n1 nvme_read: 3.1 GB/s, 39% of its PCIe link's 7.878", "6.85 is expected (the site's own)"),
        ("mlx5_1/1 nic: 200.0 Gb/s, 79% of its PCIe link's 252.1", "400 is expected (the site's own)"),
    ]


def test_a_drive_that_gives_an_error_rejects_the_node() -> None:
    document = recorded("quick")
    document["host_devices"] = {"drives": [{"name": "nvme0n1", "read": {"error": "Input/output error"}}]}
    [judged] = judge({"a": document})
    assert "nvme0n1: Input/output error" in [found.text for found in judged.faults]
    document["host_devices"] = {"error": "the GPU or its driver hangs"}
    [judged] = judge({"a": document})
    assert judged.verdict == "accepted"
    assert any(found.rule == "nvme.unread" for found in judged.findings)
