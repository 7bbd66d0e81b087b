"""Each aspect in which nodes should be alike: a node that differs in it is reported with this aspect only."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from gpuprov.drift.majority import ASPECTS
from gpuprov.probe.facts import Facts
from tests import H200
from tests.unit.drift.test_uniformity import compared

SOURCES = "/etc/apt/sources.list.d/ubuntu.sources"
SHOWN = (
    "Id={0}\nNames={0}\nLoadState=loaded\nActiveState={1}\nSubState=running\nUnitFileState=enabled\n"
    "NeedDaemonReload=no\n"
)


def text(old: str, new: str, key: str = "text") -> Callable[[Any], Any]:
    """Return a change of the first occurrence of a text in a collector's output."""

    def changed(raw: Any) -> Any:
        assert old in raw[key]
        return raw | {key: raw[key].replace(old, new, 1)}

    return changed


def values(**new: Any) -> Callable[[Any], Any]:
    """Return a change of some values of a collector's answer."""
    return lambda raw: {**(raw if isinstance(raw, dict) else {}), **new}


def on_smi(old: str, new: str) -> Callable[[Any], Any]:
    """Return a change of the first GPU in the output of `nvidia-smi -q -x`."""
    return text(old, new, "stdout")


ODD: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "system.os": ("system", text("24.04.3 LTS", "24.04.2 LTS", "os_release")),
    "system.arch": ("system", values(machine="aarch64")),
    "system.cmdline": ("system", text(" quiet", " quiet iommu=pt", "cmdline")),
    "system.cpu": ("cpu", values(logical=32)),
    "system.memory_gib": ("memory", text("528231220", "264115610")),
    "system.disks": ("disks", lambda raw: [raw[0] | {"size": 2 * raw[0]["size"]}]),
    "system.reboot_required": ("state", values(reboot_required=True)),
    "kernel.running": ("system", values(kernel="6.8.0-90-generic")),
    "kernel.next": ("kernels", values(boot=["6.8.0-90-generic"])),
    "driver.loaded": ("modules", text("580.159.04", "580.95.05", "driver")),
    "driver.modules": (
        "disk_modules",
        values(**{"6.8.0-87-generic": "filename: /lib/modules/nvidia.ko\nversion: 580.95.05\n"}),
    ),
    "modprobe.options": ("modprobe", lambda raw: [*raw, ["/etc/modprobe.d/a.conf:1", "options nvidia x=1"]]),
    "modprobe.blacklist": (
        "modprobe",
        lambda raw: [*raw, ["/etc/modprobe.d/a.conf:1", "blacklist nova_core"]],
    ),
    "gpu.count": ("pci", lambda raw: raw[:-1]),
    "gpu.models": ("pci", lambda raw: [[*row[:2], row[2].replace("2335", "2330"), *row[3:]] for row in raw]),
    "gpu.vbios": ("smi", on_smi("96.00.A5.00.1A", "96.00.99.00.00")),
    "gpu.persistence": ("smi", on_smi("<persistence_mode>Enabled", "<persistence_mode>Disabled")),
    "gpu.clocks": ("smi", on_smi("<graphics_clock>1980 MHz", "<graphics_clock>1755 MHz")),
    "gpu.ecc": ("smi", on_smi("<current_ecc>Enabled", "<current_ecc>Disabled")),
    "gpu.mig": ("smi", on_smi("<current_mig>Disabled", "<current_mig>Enabled")),
    "gpu.power_limit": ("smi", on_smi("<current_power_limit>700.00", "<current_power_limit>500.00")),
    "gpu.compute_mode": ("smi", on_smi("<compute_mode>Default", "<compute_mode>Exclusive_Process")),
    "network.hcas": (
        "hcas",
        lambda raw: [
            {
                "name": "mlx5_0",
                "port": 1,
                "state": "4: ACTIVE",
                "rate": "400 Gb/sec (4X NDR)",
                "link_layer": "InfiniBand",
                "firmware": "28.39.1002",
            }
        ],
    ),
    "packages": ("packages", text("13.0.85-1", "13.0.48-1")),
    "packages.held": ("packages", text("install ok installed", "hold ok installed")),
    "packages.broken": ("packages", text("install ok installed", "install ok half-configured")),
    "apt.sources": (
        "sources",
        lambda raw: (
            raw | {"files": {SOURCES: raw["files"][SOURCES].replace("noble-backports", "noble-proposed")}}
        ),
    ),
    "apt.unattended": ("sources", values(config='Unattended-Upgrade::Package-Blacklist:: "nvidia-.*$";')),
    "units": ("units", lambda raw: {"text": SHOWN.format("docker.service", "failed")}),
    "sshd": ("sshd", lambda raw: {"text": "port 22\npermitrootlogin yes\n"}),
    "limits": ("limits", lambda raw: {"pam": [], "systemd": "DefaultLimitMEMLOCK=8388608\n"}),
    "docker": ("daemon_json", values(value={"default-shm-size": "1g"})),
    "nccl.settings": ("nccl", values(conf="NCCL_IB_HCA=mlx5\n")),
    "nccl.libraries": ("nccl", values(libraries={"/usr/lib/x86_64-linux-gnu/libnccl.so.2": "2.27.3"})),
    "environment": ("environment", values(**{"/etc/environment": {"NCCL_DEBUG": "INFO"}})),
}


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    """Return the recorded facts of a node with H200, to be changed."""
    document: dict[str, Any] = json.loads((H200 / "facts.json").read_text())
    document["collectors"]["smi"] = {"rc": 0, "stdout": (H200 / "q.xml").read_text(), "stderr": ""}
    return document


@pytest.mark.parametrize("aspect", ODD)
def test_a_node_that_differs_in_one_aspect_is_reported_with_it(answer: dict[str, Any], aspect: str) -> None:
    collector, change = ODD[aspect]
    other = copy.deepcopy(answer)
    other["collectors"][collector] = change(other["collectors"].get(collector))
    nodes = {name: Facts.from_answer(answer) for name in ("a", "b")} | {"odd": Facts.from_answer(other)}
    *alike, odd = compared(nodes)
    assert [node.status for node in alike] == ["in_sync", "in_sync"]
    assert [difference.check for difference in odd.drift] == [aspect]


def test_every_aspect_has_a_node_that_differs_in_it() -> None:
    silent = {"driver.answers"}  # without an answer all aspects of GPUs differ, too: see test_uniformity
    assert set(ODD) | silent == set(ASPECTS)


@pytest.mark.parametrize(
    "word",
    [
        "root=UUID=5c3e9c5e",
        "BOOT_IMAGE=(hd1,gpt2)/vmlinuz",
        "initrd=initrd.img",
        "resume=UUID=0b7f7e8a",
        "ip=192.0.2.7::192.0.2.1:255.255.255.0",
        "rd.luks.uuid=0b7f7e8a",
    ],
)
def test_words_of_the_kernel_s_command_line_that_belong_to_one_node(
    answer: dict[str, Any], word: str
) -> None:
    other = copy.deepcopy(answer)
    other["collectors"]["system"]["cmdline"] += f" {word}"
    nodes = [Facts.from_answer(each) for each in (answer, answer, other)]
    assert [node.status for node in compared(dict(zip("abc", nodes, strict=True)))] == ["in_sync"] * 3


def test_keys_and_addresses_of_sshd_that_belong_to_one_node(answer: dict[str, Any]) -> None:
    nodes = {}
    for number in (1, 2, 3):
        own = copy.deepcopy(answer)
        lines = f"port 22\nlistenaddress 192.0.2.{number}:22\nhostkey /etc/ssh/key{number}\n"
        own["collectors"]["sshd"] = {"text": lines}
        nodes[f"gpu{number}"] = Facts.from_answer(own)
    assert [node.status for node in compared(nodes)] == ["in_sync"] * 3
