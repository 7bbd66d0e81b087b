"""SSH and firewall on real nodes: access from outside, an audit, faults and their correction."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from gpuprov.errors import Unreachable
from gpuprov_lab import Lab
from gpuprov_lab.variants import with_admin
from tests.lab.auditor import complaints
from tests.lab.command_line import gpuprov
from tests.lab.lost_sshd import BY_HAND, LOSE_SSHD, MAIN, command_of
from tests.lab.marks import slow_ones

ADMIN = "ops"
KERNELS = {"debian12": "6.1.0-56-amd64", "debian13": "6.12.94+deb13-amd64"}
RULES = "nft -p list table inet gpuprov"
DROP_IN = "/etc/ssh/sshd_config.d/00-a.conf"
RELOAD = "systemctl reload ssh; sleep 1"
KEYS = "AuthorizedKeysCommand /bin/false\\nAuthorizedKeysCommandUser nobody\\n"
MATCH = f"printf '{KEYS}Match User ops\\n MaxAuthTries 9\\n' >{DROP_IN}"
PERMIT = "sed -i '1i auth sufficient pam_permit.so site' /etc/pam.d/sshd"
ROLES = ("--role", "ssh_hardening", "--role", "firewall")
FAULTS = {
    "drop-in": (f"echo PasswordAuthentication yes >{DROP_IN}; {RELOAD}", "ssh.options ssh.offered"),
    "match-block": (
        f"{MATCH}; {RELOAD}; {PERMIT}; touch /etc/ssh/sshd_config",
        "ssh.options ssh.logins ssh.pam ssh.loaded",
    ),
    "masked": ("systemctl -q mask ssh.service", "ssh.at_boot"),
    "lost": (LOSE_SSHD, "ssh.main_process"),
    "rule": ("nft insert rule inet gpuprov input accept", "firewall.input"),
    "element": ("nft add element inet gpuprov fleet4 '{ 203.0.113.0/24 }'", "firewall.networks"),
    "file": ("rm /etc/gpuprov/firewall.nft", "firewall.at_boot"),
    "unit": ("systemctl -q disable gpuprov-firewall.service", "firewall.unit"),
    "flush": ("rm /etc/systemd/system/nftables.service.d/*; systemctl daemon-reload", "firewall.survives"),
}
"""Name → command, and the checks that fail."""
AT_ONCE = ("match-block", "masked", "rule", "file")
"""Faults that are made and corrected together, as none hides another; slow tests try each fault alone."""
FAULTS["at-once"] = (
    "; ".join(FAULTS[name][0] for name in AT_ONCE),
    " ".join(FAULTS[name][1] for name in AT_ONCE),
)


def apply(folder: Path) -> subprocess.CompletedProcess[str]:
    """Apply the roles of SSH and firewall without verification; any exit code."""
    return gpuprov(folder, "apply", "--yes", "--no-verify", *ROLES, "--guard", "60", code=None)


class Hardened:
    """Nodes of each system with a fleet's SSH and firewall settings, and a node outside the fleet."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.folder = folder
        self.nodes = [
            *lab.up(1, "debian12", names=["old"], prepare=[with_admin(ADMIN)]),
            *lab.up(1, "debian13", names=["new"], prepare=[with_admin(ADMIN)]),
        ]
        [self.stranger] = lab.up(1, "debian12", names=["stranger"], prepare=[with_admin("guest", "guessed")])
        groups = {
            node.name: {
                "profile": "hgx-a100-4",
                "os": node.os,
                "stack": {"repository": "distribution"},
                "hosts": {node.name: node.address},
                "settings": {"kernel": KERNELS[node.os], "ssh": {"root": "no"}, "firewall": {}},
            }
            for node in self.nodes
        }
        ssh = {"user": ADMIN, "identity_file": str(lab.identity_file), "known_hosts": str(lab.known_hosts)}
        (folder / "fleet.yml").write_text(yaml.safe_dump({"groups": groups, "ssh": ssh}))
        for node in self.nodes:
            node.run("echo ops:guessed | chpasswd")
        gpuprov(folder, "lock")
        applied = apply(folder)
        assert "failed" not in applied.stdout, applied.stderr
        assert applied.returncode in (0, 3), applied.stderr

    def differs(self) -> dict[str, set[str]]:
        """Return the SSH and firewall checks in drift, by node."""
        nodes = json.loads(gpuprov(self.folder, "drift", "-o", "json", code=None).stdout)["nodes"]
        return {
            node["name"]: {
                each["check"] for each in node["drift"] if each["check"].startswith(("ssh", "fire"))
            }
            for node in nodes
        }

    def fails(self) -> set[str]:
        """Return the SSH and firewall checks that fail in verify."""
        verdict = json.loads(gpuprov(self.folder, "verify", "-o", "json", code=None).stdout)
        failed = {c["check"] for node in verdict["nodes"] for c in node["checks"] if c["status"] == "failed"}
        return {check for check in failed if check.startswith(("ssh", "fire"))}


@pytest.fixture(scope="module")
def hardened(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Hardened:
    return Hardened(module_lab, tmp_path_factory.mktemp("fleet"))


def test_nothing_differs_and_nothing_fails_afterwards(hardened: Hardened) -> None:
    assert hardened.differs() == {"old": set(), "new": set()}
    assert hardened.fails() == set()
    again = apply(hardened.folder)
    assert "SSH and firewall" not in again.stderr


def test_an_auditor_finds_no_failure_and_no_warning(hardened: Hardened) -> None:
    assert [complaints(node) for node in hardened.nodes] == [[], []]


@pytest.mark.parametrize("position", [0, 1])
def test_a_stranger_gets_nowhere(hardened: Hardened, position: int) -> None:
    node, stranger = hardened.nodes[position], hardened.stranger
    node.run("sudo systemd-run --unit=listener8000 python3 -m http.server 8000", user=ADMIN)
    probe = "import socket; socket.create_connection(('{}', {}), 2)"
    for port, open_ in ((22, True), (8000, False), (111, False)):
        tried = stranger.run(f'python3 -c "{probe.format(node.address, port)}"', check=False)
        assert (tried.returncode == 0) == open_, (port, tried.stderr)
    ask = "ssh -v -o StrictHostKeyChecking=no -o BatchMode=yes -o PubkeyAuthentication=no"
    for account in (ADMIN, "root"):
        refused = stranger.run(f"{ask} {account}@{node.address} true; echo over")
        assert "Permission denied (publickey)" in refused.stderr, refused.stderr


def test_root_is_refused_even_with_its_key(hardened: Hardened) -> None:
    for node in hardened.nodes:
        command = [*node.ssh_command("root"), "true"]
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "Permission denied" in tried.stderr


def test_nodes_of_the_fleet_reach_each_other(hardened: Hardened) -> None:
    one, other = hardened.nodes
    one.run("sudo systemd-run --unit=rendezvous python3 -m http.server 29500", user=ADMIN)
    tried = f"import socket,time; time.sleep(1); socket.create_connection(('{one.address}', 29500), 3)"
    other.run(f'python3 -c "{tried}"', user=ADMIN)


@pytest.mark.parametrize("name", slow_ones(FAULTS, FAULTS.keys() - {"at-once"}))
def test_a_fault_is_seen_by_both_witnesses_and_mended(hardened: Hardened, name: str) -> None:
    node, (fault, check) = hardened.nodes[0], FAULTS[name]
    node.run(f"sudo sh -c {shlex.quote(fault)}", user=ADMIN)
    assert hardened.differs()["old"] == set(check.split()) - {"ssh.offered"}
    assert hardened.fails() == set(check.split())
    node.run(f"sudo sh -c 'rm -f {DROP_IN}; sed -i /pam_permit.so.site/d /etc/pam.d/sshd'", user=ADMIN)
    apply(hardened.folder)
    assert hardened.differs()["old"] == set()


@pytest.mark.slow
def test_rules_that_take_an_uplink_for_a_network_of_docker_are_refused(hardened: Hardened) -> None:
    node = hardened.nodes[0]
    node.run("sudo nft flush chain inet gpuprov forward", user=ADMIN)
    # In /sys a node of the lab sees the interfaces of this machine.
    node.run("sudo mount -t tmpfs tmpfs /sys/class/net && sudo mkdir /sys/class/net/br-ex", user=ADMIN)
    refused = apply(hardened.folder)
    assert refused.returncode == 1
    assert "settings.firewall.uplinks: [br-ex]" in refused.stdout + refused.stderr
    assert "firewall.forward" in hardened.differs()["old"]
    node.run("sudo umount /sys/class/net", user=ADMIN)
    assert apply(hardened.folder).returncode in (0, 3)
    assert hardened.differs()["old"] == set()


@pytest.mark.slow
def test_an_sshd_that_was_started_by_hand_is_not_restarted(hardened: Hardened) -> None:
    """Check that the switch and the role refuse, and that the command in their messages corrects the node."""
    node = hardened.nodes[0]
    node.run(f"sudo sh -c {shlex.quote(f'{BY_HAND}touch /etc/ssh/sshd_config')}", user=ADMIN)
    assert hardened.differs()["old"] >= {"ssh.main_process"}
    assert "ssh.main_process" in hardened.fails()
    refused = apply(hardened.folder)
    assert refused.returncode == 1
    with suppress(Unreachable):  # the connection may end with the unit of its sshd, as the message says
        node.run(command_of(refused.stdout + refused.stderr), user=ADMIN)
    time.sleep(4)
    assert node.run(f"sudo sh -c {shlex.quote(MAIN)}", user=ADMIN).stdout == "main process\n"
    assert apply(hardened.folder).returncode in (0, 3)
    assert hardened.differs()["old"] == set()


@pytest.mark.parametrize("position", [0, 1])
def test_rules_outlive_the_unit_that_flushes_all_tables(hardened: Hardened, position: int) -> None:
    node = hardened.nodes[position]
    rules = f"sudo {RULES}"
    before = node.run(rules, user=ADMIN).stdout
    for verb in ("start", "reload", "restart", "stop", "enable --now", "disable --now"):
        node.run(f"sudo systemctl -q {verb} nftables.service", user=ADMIN)
        assert node.run(rules, user=ADMIN, check=False).stdout == before, verb
    node.run("sudo systemctl stop gpuprov-firewall && sudo systemctl restart nftables", user=ADMIN)
    assert node.run(rules, user=ADMIN, check=False).returncode  # an intentionally stopped unit stays stopped
    node.run("sudo systemctl stop nftables && sudo systemctl start gpuprov-firewall", user=ADMIN)
    assert node.run(rules, user=ADMIN).stdout == before


def test_rules_come_back_with_a_boot_also_where_protocols_have_no_names(hardened: Hardened) -> None:
    node = hardened.nodes[1]
    before = node.run(f"sudo {RULES}", user=ADMIN).stdout
    node.run("sudo mv /etc/protocols /etc/protocols.off", user=ADMIN)
    node.stop()
    node.start()
    assert node.run(f"sudo {RULES}", user=ADMIN).stdout == before
    assert hardened.differs()["new"] == set()
    assert hardened.fails() == set()
    node.run("sudo mv /etc/protocols.off /etc/protocols", user=ADMIN)


def test_a_change_that_shuts_us_out_is_reverted_and_reported(hardened: Hardened) -> None:
    path = hardened.folder / "fleet.lock.yml"
    locked = path.read_text()
    path.write_text(locked.replace("- tcp dport 22 accept", "- tcp dport 23 accept"))
    failed = apply(hardened.folder)
    path.write_text(locked)
    assert failed.returncode == 1, failed.stderr
    assert "a new login did not work" in failed.stderr + failed.stdout
    assert "not changed, because" not in failed.stdout  # a node of another group is not a canary
    assert {"ssh.undone"} <= set.union(*hardened.differs().values())
    mended = apply(hardened.folder)
    assert mended.returncode in (0, 3), mended.stderr
    assert hardened.differs() == {"old": set(), "new": set()}
