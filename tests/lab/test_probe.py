"""The probe on a real node: its facts, and its results under difficult conditions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprov.cli.common.group import run
from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.model.connection import Connection
from gpuprov.probe.collect import collect
from gpuprov.probe.facts import Facts
from gpuprov.probe.payload import Parameters
from gpuprov.ssh.transport import Target, fan_out
from gpuprov_lab import Lab, Node

BANNER = 'head -c 1000000 /dev/zero | tr "\\\\0" x; echo; echo "<<gpuprov 00 9 00>>"'
PASSWORD = "correct horse"  # noqa: S105


@pytest.fixture(scope="module")
def node(module_lab: Lab) -> Node:
    """A node with four H200 and no driver, and a user `tired` whose sudo requires a password."""
    [node] = module_lab.up(1, os="debian12", gpu="h200x4")
    node.run(
        "useradd -m -s /bin/bash tired && install -d -o tired -m 700 ~tired/.ssh && "
        "install -o tired -m 600 /root/.ssh/authorized_keys ~tired/.ssh/authorized_keys && "
        f"echo 'tired:{PASSWORD}' | chpasswd"
    )
    return node


@pytest.fixture
def mended(node: Node) -> Iterator[Node]:
    """The node for a test that changes it; the commands in /undo are run afterwards."""
    node.run("echo set -e > /undo")
    yield node
    node.run("mv /usr/bin/python3.hidden /usr/bin/python3 2>/dev/null; sh /undo")


def ask(node: Node, *, user: str = "root", password: str | None = None, **parameters: object) -> Facts:
    """Probe the node as a user; return its facts, or raise the error."""
    connection = Connection(
        user=user,
        identity_file=str(node.lab_folder / "id_ed25519"),
        known_hosts=str(node.lab_folder / "known_hosts"),
    )
    target = Target(node.name, node.address, connection)
    chosen = Parameters(**parameters)  # type: ignore[arg-type]
    [(_, answer)] = fan_out([target], lambda session: collect(session, chosen, password=password))
    if isinstance(answer, GpuprovError):
        raise answer
    return answer


def test_a_fresh_node(node: Node) -> None:
    """Check the facts of a node with GPUs on its PCI bus and no driver."""
    facts = ask(node)
    assert facts.missing == {"smi": "nvidia-smi is not installed"}
    assert (facts.os.id, facts.os.version, facts.is_root) == ("debian", "12", True)
    assert [gpu.id for gpu in facts.pci_gpus] == ["10de:2335"] * 4
    assert (facts.loaded_driver, facts.smi.gpus) == (None, ())
    assert facts.boot_id == node.boot_id()
    assert facts.kernels.next_boot in facts.kernels.installed
    assert facts.sshd["port"] == ("22",)
    assert facts.limits.systemd["DefaultLimitNOFILE"]
    assert any(nic.addresses for nic in facts.nics.values())
    assert facts.packages.broken == ()
    assert facts.state.package_manager_busy is None
    assert not facts.state.reboot_required
    assert facts.seconds < 5


def test_facts_on_the_command_line(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = ["-i", str(node.lab_folder / "id_ed25519"), "--known-hosts", str(node.lab_folder / "known_hosts")]
    assert run(["facts", f"root@{node.address}:22", *keys, "-o", "json"]) == 0
    facts = Facts.from_answer(json.loads(capsys.readouterr().out))
    assert facts.boot_id == node.boot_id()
    assert run(["facts", node.address, "-i", str(tmp_path / "absent")]) == 2
    assert "absent does not exist" in capsys.readouterr().err


def test_what_was_done_to_a_node_is_seen(mended: Node) -> None:
    mended.run(
        "cat >> /undo <<'E'\n"
        "rm -f /run/reboot-required* /etc/modprobe.d/x.conf /etc/nccl.conf /etc/apt/apt.conf.d/99x\n"
        "rm -f /etc/apt/preferences.d/x.pref /etc/systemd/system/x.service /etc/environment.d/x.conf\n"
        "rm -f /etc/docker/daemon.json /usr/bin/nvidia-uninstall\n"
        "apt-mark unhold kmod linux-image-amd64\nE\n"
        "apt-mark hold kmod linux-image-amd64\n"
        "echo 'blacklist nouveau' > /etc/modprobe.d/x.conf\n"
        "touch /run/reboot-required /usr/bin/nvidia-uninstall; echo linux-base > /run/reboot-required.pkgs\n"
        "echo 'NCCL_IB_DISABLE=1' > /etc/nccl.conf\n"
        "echo 'Unattended-Upgrade::Package-Blacklist { \"nvidia-.*\"; };' > /etc/apt/apt.conf.d/99x\n"
        "printf 'Package: nvidia-*\\nPin: release *\\nPin-Priority: -1\\n' > /etc/apt/preferences.d/x.pref\n"
        "printf '[Service]\\nExecStart=/bin/sleep 9\\n[Install]\\nWantedBy=multi-user.target\\n' "
        "> /etc/systemd/system/x.service; systemctl daemon-reload\n"
        "mkdir -p /etc/environment.d /etc/docker; echo CUDA_LAUNCH_BLOCKING=1 > /etc/environment.d/x.conf\n"
        'echo \'{"log-opts": {"splunk-token": "pa55"}}\' > /etc/docker/daemon.json\n'
    )
    facts = ask(mended, units=("x.service",), files=("/etc/nccl.conf", "/etc/ssh"))
    assert facts.packages.held == {"kmod", "linux-image-amd64"}
    assert facts.modprobe.blacklisted == {"nouveau": "/etc/modprobe.d/x.conf:1"}
    assert facts.state.reboot_packages == ("linux-base",)
    assert facts.state.foreign_drivers == ("/usr/bin/nvidia-uninstall",)
    assert facts.nccl.settings == {"NCCL_IB_DISABLE": "1"}
    assert "nvidia-.*" in facts.apt.unattended_blacklist
    assert [pin.priority for pin in facts.apt.preferences] == [-1]
    unit = facts.units["x.service"]
    assert (unit.exists, unit.active, unit.enabled, unit.exec_start) == (
        True,
        False,
        False,
        ("/bin/sleep 9",),
    )
    assert facts.environment == {"/etc/environment.d/x.conf": {"CUDA_LAUNCH_BLOCKING": "1"}}
    assert facts.daemon_json == {"log-opts": {"splunk-token": "(hidden)"}}
    assert facts.files["/etc/nccl.conf"].mode == "0644"
    assert facts.files["/etc/ssh"].kind == "directory"


def test_a_package_half_done_and_a_lock_held(mended: Node) -> None:
    mended.run(
        "cp /var/lib/dpkg/status /status\n"
        "echo 'mv /status /var/lib/dpkg/status; kill $(cat /lock.pid)' >> /undo\n"
        "sed -i '/^Package: kmod$/,/^Status:/s/install ok installed/install ok half-configured/' "
        "/var/lib/dpkg/status\n"
        'nohup python3 -c \'import fcntl, time; f = open("/var/lib/dpkg/lock-frontend", "w"); '
        "fcntl.lockf(f, fcntl.LOCK_EX); time.sleep(600)' > /dev/null 2>&1 & echo $! > /lock.pid; sleep 0.5"
    )
    facts = ask(mended)
    assert [(package.name, package.state) for package in facts.packages.broken] == [
        ("kmod", "half-configured")
    ]
    assert facts.state.package_manager_busy.startswith("python3 (")


def test_a_hanging_nvidia_smi_delays_nobody(mended: Node) -> None:
    mended.run(
        "echo 'rm /usr/local/bin/nvidia-smi' >> /undo; "
        "printf '#!/bin/sh\\nsleep 500\\n' > /usr/local/bin/nvidia-smi; chmod +x /usr/local/bin/nvidia-smi"
    )
    begun = time.monotonic()
    facts = ask(mended, seconds={"smi": 1.0})
    assert time.monotonic() - begun < 10
    assert facts.smi.error == "nvidia-smi: no answer in 1 s"
    assert len(facts.pci_gpus) == 4
    assert mended.run("pgrep -f 'sleep 500'", check=False).stdout == "", "a child of the probe is left"


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param("mount -t tmpfs -o noexec tmpfs /tmp; echo 'umount /tmp' >> /undo", id="noexec /tmp"),
        pytest.param(
            f"cp /root/.bashrc /b; echo 'mv /b /root/.bashrc' >> /undo; sed -i '1i {BANNER}' /root/.bashrc",
            id="a banner of 1 MB",
        ),
        pytest.param("chsh -s /bin/dash; echo 'chsh -s /bin/bash' >> /undo", id="another login shell"),
        pytest.param(
            "mount -t tmpfs -o size=64k tmpfs /var/tmp; head -c 200000 /dev/zero > /var/tmp/x; "
            "echo 'umount /var/tmp' >> /undo",
            id="a full disk",
        ),
    ],
)
def test_a_node_that_makes_it_hard_answers_all_the_same(mended: Node, trouble: str) -> None:
    mended.run(trouble, check=False)
    assert ask(mended).kernel


def test_a_login_shell_that_exits(mended: Node) -> None:
    mended.run("usermod -s /bin/false tired; echo 'usermod -s /bin/bash tired' >> /undo")
    with pytest.raises(NodeFailed, match="no answer from the probe"):
        ask(mended, user="tired")


def test_a_node_without_python(mended: Node) -> None:
    mended.run("mv /usr/bin/python3 /usr/bin/python3.hidden")
    with pytest.raises(NodeFailed, match="no Python 3 on the node; install python3 there"):
        ask(mended)


def test_sudo_that_is_not_allowed(node: Node) -> None:
    facts = ask(node, user="tired")
    assert not facts.is_root
    assert "sshd" in facts.missing
    assert facts.kernel


def test_sudo_without_a_password(mended: Node) -> None:
    mended.run(
        "echo 'tired ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/tired; echo rm /etc/sudoers.d/tired >> /undo"
    )
    assert ask(mended, user="tired").is_root
    assert ask(mended, user="tired", password=PASSWORD).is_root


def test_sudo_with_a_password(mended: Node) -> None:
    mended.run("echo 'tired ALL=(ALL) ALL' > /etc/sudoers.d/tired; echo rm /etc/sudoers.d/tired >> /undo")
    assert ask(mended, user="tired", password=PASSWORD).is_root
    with pytest.raises(NodeFailed, match=r"no answer from the probe: .*(incorrect password|no password)"):
        ask(mended, user="tired", password="wrong")  # noqa: S106
    assert PASSWORD not in mended.run("journalctl --no-pager").stdout


def test_nothing_is_left_behind(node: Node) -> None:
    seen = (
        "find / -xdev -newer /mark -type f -not -path '/var/log/*' -not -path '/proc/*' -not -path '/sys/*'"
    )
    node.run("touch /mark; sleep 1.1")
    ask(node)
    left = [
        line
        for line in node.run(seen).stdout.splitlines()
        if not line.startswith(("/run/", "/var/lib/systemd"))
    ]
    assert left == []
