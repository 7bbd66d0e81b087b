"""A node that plays Rocky Linux 9 by the command line: from bootstrap to an upgrade and its rollback.

The tests build on each other. What such a node does not show is in docs/proof.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gpuprov.access.deadman import FOLDER as HOME
from gpuprov.access.scripts import node_script
from gpuprov_lab import Lab
from tests.lab.dnf_chain import Chain, new_chain

pytestmark = pytest.mark.slow
SWITCH = node_script("gpuprov.access", "node/deadman.sh")
DRIVERS = ("3:580.126.16-1.el9", "3:595.71.05-1.el9")
"""Versions of the driver's packages before and after the upgrade."""
STREAM = "cat /etc/dnf/modules.d/nvidia-driver.module"
UNTIL_JUDGED = "timeout 150 sh -c 'until test -e /run/gpuprov/health; do sleep 1; done'"
FIREWALLD = "systemctl is-enabled firewalld; systemctl is-active firewalld"


@pytest.fixture(scope="module")
def chain(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """A node of Rocky Linux 9 with firewalld, and a fleet with a mirror; not locked."""
    with new_chain(module_lab, tmp_path_factory.mktemp("rocky"), "rhel9") as chain:
        chain.node.run("dnf -q -y install firewalld && systemctl -q enable --now firewalld")
        yield chain


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
    chain.resume_killed_upgrade("next.lock.yml")
    assert chain.installed("nvidia-driver-cuda") == DRIVERS[1]
    assert chain.installed("docker-ce").startswith("3:29.5")
    assert "stream=595-open" in chain.node.run(STREAM).stdout
    assert chain.failed() == {}


def test_a_rollback_needs_no_repository(chain: Chain) -> None:
    chain.forget_packages()
    kept = "/var/lib/gpuprov/lastgood/packages/libnccl-2*.rpm"  # in two versions, as after a killed rollback
    chain.node.run(f"rpm --install --oldpackage --force --nodeps --force-debian {kept}")
    chain.roll_back()
    assert chain.installed("nvidia-driver-cuda") == DRIVERS[0]
    assert chain.installed("docker-ce").startswith("3:28.5")
    assert "stream=580-open" in chain.node.run(STREAM).stdout
    assert chain.drift() == chain.failed() == {}
