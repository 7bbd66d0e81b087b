"""First boot: cloud-init and user-data bring a new server to its lock, and failures end in a clear state."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprov.inventory.exports.cloud_init import LIMIT
from gpuprov_lab import Lab, Node, engine
from gpuprov_lab.mirror.serve import MirrorServer, served
from gpuprov_lab.network import GATEWAY
from gpuprov_lab.variants import at_boot, with_cloud_init, with_control_groups
from tests.hook import Hook, listening
from tests.lab.cloud_node import MACHINE, STATE, await_state, journal, state, user_data, write_fleet
from tests.lab.package_index import build_index, obtained
from tests.lab.stub_compiler import with_played_compiler

SMALL = "mount -t tmpfs -o size=200m tmpfs /opt"
DOWN_S = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a package index and gpuprov's wheel in `mirror`."""
    folder = tmp_path_factory.mktemp("first-boot")
    build_index(folder / "mirror")
    return folder


@pytest.fixture(scope="module")
def index(folder: Path) -> Iterator[MirrorServer]:
    with served(folder / "mirror") as server:
        yield server


@pytest.fixture
def hook() -> Iterator[Hook]:
    with listening("0.0.0.0", GATEWAY) as server:  # noqa: S104 - nodes have to reach it
        yield server


def test_a_fresh_server_is_verified_with_nobody_watching(
    lab: Lab, folder: Path, index: MirrorServer, hook: Hook
) -> None:
    lock = write_fleet(folder)
    version = lock.groups["train"].components.driver.version
    data = user_data(folder, *obtained(folder / "mirror", index.url), "--report", hook.url)
    print(f"user-data of {len(data)} bytes")  # noqa: T201
    assert len(data) <= LIMIT
    [node] = lab.up(
        1, gpu=MACHINE, prepare=[with_control_groups, with_played_compiler(version), with_cloud_init(data)]
    )
    begun, login = time.monotonic(), node.run("sshd -T; cat /root/.ssh/authorized_keys").stdout
    result = await_state(node)
    print(f"verified after {time.monotonic() - begun:.0f} s: {result}")  # noqa: T201
    assert (result["state"], result["exit_code"], result["reboots"]) == ("done", 0, 1), journal(node)
    assert node.run("cloud-init status", check=False).stdout.strip() == "status: done"
    assert node.run("gpuprov drift --lock /etc/gpuprov/fleet.lock.yml here").returncode == 0
    assert node.run("gpuprov verify --lock /etc/gpuprov/fleet.lock.yml here").returncode == 0
    assert node.run("sshd -T; cat /root/.ssh/authorized_keys").stdout == login
    metrics = node.run("cat /var/lib/prometheus/node-exporter/gpuprov_first_boot.prom").stdout
    assert 'gpuprov_first_boot_state{state="done"} 1\n' in metrics
    assert [each["state"] for each in hook.posted] == ["done"]
    assert node.run("systemctl is-enabled gpuprov-first-boot", check=False).stdout.strip() == "disabled"
    attempts = result["attempts"]
    node.reboot()
    node.run("systemctl is-system-running --wait", check=False)
    assert state(node)["attempts"] == attempts


@pytest.mark.slow
def test_a_server_without_gpus_says_so_and_is_left_alone(
    lab: Lab, folder: Path, index: MirrorServer, hook: Hook
) -> None:
    write_fleet(folder, light=True)
    data = user_data(folder, *obtained(folder / "mirror", index.url), "--report", hook.url)
    [node] = lab.up(1, prepare=[with_cloud_init(data)])
    result = await_state(node)
    assert (result["state"], result["exit_code"]) == ("failed", 1)
    assert result["message"] == "no NVIDIA GPU on the PCI bus, the lock expects 4"
    assert result["do"] == "take a machine with GPUs, or attach them and reboot"
    assert node.run("systemctl is-failed gpuprov-first-boot", check=False).stdout.strip() == "failed"
    assert node.run("test -e /opt/gpuprov", check=False).returncode == 1
    assert [(each["state"], each["step"]) for each in hook.posted] == [("failed", "look")]


@pytest.mark.slow
def test_bad_days_end_in_a_clear_state_and_are_mended(lab: Lab, folder: Path) -> None:
    """Fail on one server with the mirror down, a wrong hash, a full disk and a power cut, and recover."""
    lock = write_fleet(folder, light=True)
    version = lock.groups["train"].components.driver.version
    port, own = free_port(), folder / "mirror/own.lock.yml"
    mirror = f"http://{GATEWAY}:{port}"
    words = ("--lock-url", f"{mirror}/own.lock.yml", "--lock-out", str(own))
    data = user_data(folder, *obtained(folder / "mirror", mirror), *words)
    exported = own.read_bytes()
    own.write_bytes(exported + b"# changed on the way\n")
    steps = [with_played_compiler(version), small_disk, with_cloud_init(data)]
    [node] = lab.up(1, gpu=MACHINE, prepare=steps)

    time.sleep(DOWN_S)  # the mirror is down
    result = state(node)
    assert (result["state"], result["step"], result["attempts"]) == ("running", "lock", 1), result
    with served(folder / "mirror", port):
        result = await_state(node)
        there, wanted = (hashlib.sha256(each).hexdigest() for each in (own.read_bytes(), exported))
        assert result["state"] == "failed"
        assert result["message"] == f"{mirror}/own.lock.yml has the SHA-256 {there}; expected {wanted}"
        assert result["attempts"] == 1, "it went on by itself when the mirror was back"

        own.write_bytes(exported)
        node.reboot()
        result = await_state(node, after=result["attempts"])
        assert (result["state"], result["step"]) == ("failed", "install")
        assert "the disk is full" in result["message"]
        assert "make room or grow the disk" in result["do"]

        node.run("systemctl disable gpuprov-lab-small-opt.service")
        node.reboot()
        await_dpkg(node)
        cut_power(node)
        result = await_state(node, ["done"], after=result["attempts"] + 1)
    print(result)  # noqa: T201
    assert node.run("dpkg --audit").stdout == ""
    assert node.run("gpuprov drift --lock /etc/gpuprov/fleet.lock.yml here").returncode == 0


def small_disk(root: Path) -> None:
    """Give a machine a small /opt at its boot."""
    at_boot(root, "small-opt", SMALL)


def free_port() -> int:
    """Return the number of a port that is free now."""
    with socket.socket() as found:
        found.bind(("", 0))
        port: int = found.getsockname()[1]
        return port


def await_dpkg(node: Node) -> None:
    """Wait until gpuprov has unpacked packages."""
    deadline = time.monotonic() + 600
    while node.run(
        "test -e /usr/src/nvidia-current* -o -e /var/lib/dkms/nvidia-current", check=False
    ).returncode:
        assert time.monotonic() < deadline, journal(node)
        time.sleep(0.2)
    assert state(node)["step"] == "apply", STATE


def cut_power(node: Node) -> None:
    """Kill a running node and start it again."""
    engine.kill(node.machine, node.root)
    node.start()
