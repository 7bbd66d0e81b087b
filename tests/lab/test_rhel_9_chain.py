"""A node that plays Rocky Linux 9 by the command line: from bootstrap to an upgrade and its rollback.

The tests build on each other. What such a node does not show is in docs/proof.md.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.access.deadman import FOLDER as HOME
from gpuprov.access.scripts import node_script
from gpuprov.catalog import load
from gpuprov_lab import Lab, Node
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.serve import served
from gpuprov_lab.variants import with_control_groups, with_network_parameters
from tests.lab.command_line import gpuprov, start
from tests.systems import IMAGES

pytestmark = pytest.mark.slow
STACK = {
    "repository": "nvidia",
    "driver": "580.126.16",
    "cuda": "13.0",
    "cudnn": "9.15",
    "nccl": "auto",
    "docker": "28.5",
    "podman": "5.4",
    "container_toolkit": "1.19.0",
    "profiling_tools": "auto",
    "node_exporter": "auto",
    "dcgm": "4.5.2",
}
SETTINGS = {
    "persistence": True,
    "clocks": {"graphics": 1980, "memory": 3201},
    "containers": {"shm_size": "1g", "cgroup_driver": "cgroupfs"},
    "tuning": {"limits": {"nofile": 4096}, "environment": {"OMP_NUM_THREADS": 8}},
    "storage_clients": ["nfs"],
    "monitoring": {"textfile": "/var/lib/prometheus/node-exporter"},
    "profiling_counters": True,
    "health": {},
    "ssh": {},
    "firewall": {"open": [{"ports": [8888]}]},
}
SWITCH = node_script("gpuprov.access", "node/deadman.sh")
DRIVERS = ("3:580.126.16-1.el9", "3:595.71.05-1.el9")
"""Versions of the driver's packages before and after the upgrade."""
STREAM = "cat /etc/dnf/modules.d/nvidia-driver.module"
UNTIL_JUDGED = "timeout 150 sh -c 'until test -e /run/gpuprov/health; do sleep 1; done'"
FIREWALLD = "systemctl is-enabled firewalld; systemctl is-active firewalld"


@dataclass(frozen=True)
class Chain:
    """A node, and the folder of its fleet."""

    node: Node
    folder: Path
    fleet: dict[str, Any]

    def gpuprov(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run gpuprov in the folder."""
        return gpuprov(self.folder, *words, code=code)

    def state(self, lock: str = "fleet.lock.yml", **stack: str) -> None:
        """Write the fleet with these versions and lock it."""
        [group] = self.fleet["groups"].values()
        stated = {**self.fleet, "groups": {"train": {**group, "stack": {**group["stack"], **stack}}}}
        (self.folder / "fleet.yml").write_text(yaml.safe_dump(stated))
        self.gpuprov("lock", "--lock", lock)

    def failed(self) -> dict[str, Any]:
        """Return the checks that fail in verify, as check → actual value."""
        self.node.run("systemctl is-system-running --wait", check=False)
        [node] = json.loads(self.gpuprov("verify", "-o", "json", code=None).stdout)["nodes"]
        assert node["checks"], node["message"]
        return {each["check"]: each["actual"] for each in node["checks"] if each["status"] == "failed"}

    def drift(self) -> dict[str, Any]:
        """Return drift as check → actual value."""
        [node] = json.loads(self.gpuprov("drift", "-o", "json", code=None).stdout)["nodes"]
        return {each["check"]: each["actual"] for each in node["drift"]}

    def journal(self) -> str:
        """Return the text of all journals of upgrades."""
        paths = (self.folder / "state/gpuprov/runs").glob("*-upgrade-*/journal.jsonl")
        return "".join(path.read_text() for path in paths)

    def installed(self, name: str) -> str:
        """Return the version of an installed package."""
        return self.node.run(f"rpm -q --qf '%{{EVR}}' {name}", check=False).stdout


@pytest.fixture(scope="module")
def chain(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """A node of Rocky Linux 9 with firewalld, and a fleet with a mirror; not locked."""
    folder = tmp_path_factory.mktemp("rocky")
    mirror = nvidia.build(folder / "mirror", load(), ["rhel9"])
    [node] = module_lab.up(
        1, os=IMAGES["rhel9"], gpu="h200x8", prepare=[with_control_groups, with_network_parameters]
    )
    node.run("dnf -q -y install firewalld && systemctl -q enable --now firewalld")
    (folder / "profiles").mkdir()
    profile = {"hardware": {"gpu": {"model": "H200 SXM", "count": 8}}}
    (folder / "profiles/eight.yml").write_text(yaml.safe_dump(profile))
    with ExitStack() as stack:
        server, key = stack.enter_context(served(mirror.root)), str(mirror.key)
        urls = {**mirror.urls(server.url), **mirror.others(server.url)}
        fleet = {
            "ssh": yaml.safe_load(module_lab.fleet("eight"))["ssh"],
            "repositories": {name: {"url": url, "key": key} for name, url in urls.items()},
            "groups": {
                "train": {
                    "profile": "eight",
                    "os": "rhel9",
                    "hosts": {node.name: node.address},
                    "stack": STACK,
                    "settings": {"kernel": node.kernel, **SETTINGS},
                }
            },
        }
        yield Chain(node, folder, fleet)


def test_from_bootstrap_to_a_node_in_sync(chain: Chain) -> None:
    chain.state()
    chain.gpuprov("bootstrap")
    plan = chain.gpuprov("plan", code=3)
    assert "ssh_hardening, firewall" in plan.stdout
    applied = chain.gpuprov("apply", "--reboot", "--yes")
    assert "rebooted  verified" in applied.stdout, applied.stdout + applied.stderr
    assert chain.drift() == {}
    assert chain.failed() == {}
    again = chain.gpuprov("apply", "--yes")
    assert "nothing to do" in again.stderr
    changed = chain.gpuprov("apply", "--full", "--yes", "-o", "json")
    assert json.loads(changed.stdout)["nodes"][0]["changed"] == 0, changed.stderr


def test_the_options_of_the_fleet_replace_those_of_the_crypto_policy(chain: Chain) -> None:
    options = chain.node.run("sshd -T").stdout
    assert "hmac-sha1" not in options
    assert "gssapiauthentication no" in options
    policy = "/etc/crypto-policies/back-ends/opensshserver.config"
    earlier = "/etc/ssh/sshd_config.d/00-a-site.conf"
    chain.node.run(f"echo 'Include {policy}' >{earlier}; systemctl reload sshd; sleep 1")
    assert set(chain.drift()) == set(chain.failed()) == {"ssh.options"}
    refused = chain.gpuprov("apply", "--yes", code=1)
    assert f"{policy}:1 (Ciphers " in refused.stdout + refused.stderr
    chain.node.run(f"rm {earlier}; systemctl reload sshd; sleep 1")
    chain.gpuprov("apply", "--yes")
    assert chain.drift() == {}


def test_firewalld_is_off_and_its_return_is_seen_by_both_and_mended(chain: Chain) -> None:
    assert chain.node.run(FIREWALLD, check=False).stdout.split() == ["disabled", "inactive"]
    chain.node.run("systemctl start firewalld")
    expected = {"firewall.unit": "enabled, beside firewalld.service"}
    assert chain.drift() == chain.failed() == expected
    chain.gpuprov("apply", "--yes")
    assert chain.node.run(FIREWALLD, check=False).stdout.split() == ["disabled", "inactive"]
    assert chain.drift() == chain.failed() == {}


@pytest.mark.parametrize("end", ["its time is over", "the node boots"])
def test_the_dead_mans_switch_starts_firewalld_again(chain: Chain, end: str) -> None:
    """Switch firewalld off, as the role does, under the armed switch, and give no proof by a new login."""
    token, seconds = f"{end.split()[-1]}1", 5 if "time" in end else 300
    chain.node.run("cat >/root/deadman.sh && systemctl -q enable --now firewalld", input=SWITCH)
    chain.node.run(
        f"mkdir -p {HOME} && cp /root/deadman.sh {HOME}/switch.{token}"
        f" && sh {HOME}/switch.{token} arm {seconds} {token} root && systemctl -q disable --now firewalld"
    )
    assert chain.node.run(FIREWALLD, check=False).stdout.split() == ["disabled", "inactive"]
    if "time" in end:
        chain.node.run(f"timeout 60 sh -c 'until test -e {HOME}/restored; do sleep 1; done'")
    else:
        chain.node.reboot()
        chain.node.run(f"systemctl is-system-running --wait; {UNTIL_JUDGED}", check=False)
    assert chain.node.run(FIREWALLD, check=False).stdout.split() == ["enabled", "active"]
    chain.node.run("systemctl -q disable --now firewalld")
    assert f"run {token}: " in chain.drift()["ssh.undone"]
    chain.node.run(f"rm {HOME}/undone")
    assert chain.drift() == {}


def test_an_upgrade_whose_controller_dies_is_resumed(chain: Chain) -> None:
    chain.state("next.lock.yml", driver="595.71.05", docker="29.5")
    plan = json.loads(chain.gpuprov("upgrade", "--to", "next.lock.yml", "--plan", "-o", "json").stdout)
    assert plan["nodes"][0]["moves"]["nvidia-driver-cuda"]["to"] == DRIVERS[1]
    process = start(chain.folder, "upgrade", "--to", "next.lock.yml", "--yes", "-o", "json")
    while '"apply"' not in chain.journal():
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    time.sleep(20)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = chain.gpuprov("upgrade", "--resume", "-o", "json", code=None)
    assert done.returncode == 0, done.stdout + done.stderr
    assert chain.installed("nvidia-driver-cuda") == DRIVERS[1]
    assert chain.installed("docker-ce").startswith("3:29.5")
    assert "stream=595-open" in chain.node.run(STREAM).stdout
    assert chain.failed() == {}


def test_a_rollback_needs_no_repository(chain: Chain) -> None:
    chain.node.run("echo proxy=http://127.0.0.1:9 >>/etc/dnf/dnf.conf; rm -rf /var/cache/dnf/*/packages")
    kept = "/var/lib/gpuprov/lastgood/packages/libnccl-2*.rpm"  # in two versions, as after a killed rollback
    chain.node.run(f"rpm --install --oldpackage --force --nodeps --force-debian {kept}")
    back = chain.gpuprov("rollback", "--yes", "-o", "json", code=None)
    chain.node.run("sed -i /^proxy=/d /etc/dnf/dnf.conf")
    assert back.returncode == 0, back.stdout + back.stderr
    assert chain.installed("nvidia-driver-cuda") == DRIVERS[0]
    assert chain.installed("docker-ce").startswith("3:28.5")
    assert "stream=580-open" in chain.node.run(STREAM).stdout
    assert chain.drift() == chain.failed() == {}
