"""A virtual node of RHEL's family that enforces SELinux: its sshd may read keys and listen on its ports.

A boot takes a minute and more, and so does an apply. `scripts/campaign lockout --selinux` applies SSH and
firewall to such a node.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.access.deadman import FOLDER, LIMITS, Guard, arm
from gpuprov.catalog import load
from gpuprov.model.connection import Connection
from gpuprov.ssh.transport import Target, open_session
from gpuprov_lab import Lab, Node
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.serve import served
from tests.lab.command_line import gpuprov
from tests.systems import IMAGES

pytestmark = pytest.mark.slow
ADMIN = "ops"
UNTIL_RESTORED = f"timeout 200 sh -c 'until test -e {FOLDER}/restored; do sleep 2; done'"
CLAIMED = 2244
"""Port to which the site gives another type."""
OF_POLICY = 8008
"""Port that the policy gives to web servers; a virtual node forwards it."""
LABELS = f"getenforce; restorecon -nvR -e {FOLDER}/saved /etc /home /root /var/lib/gpuprov"


@pytest.fixture(scope="module")
def node(module_lab: Lab) -> Node:
    """A booted machine that enforces SELinux."""
    [node] = module_lab.up(1, IMAGES["rhel9"])
    return module_lab.virtualise(node)


def test_a_new_account_logs_in_and_each_file_has_the_label_of_the_policy(
    module_lab: Lab, node: Node, tmp_path: Path
) -> None:
    """Check an account that bootstrap makes, then that account's ~/.ssh after the switch has restored it."""
    group = {"profile": "hgx-a100-4", "os": "rhel9", "hosts": {node.name: node.address}}
    key = str(module_lab.identity_file)
    ssh = {"user": ADMIN, "identity_file": key, "known_hosts": str(module_lab.known_hosts)}
    (tmp_path / "fleet.yml").write_text(yaml.safe_dump({"groups": {"train": group}, "ssh": ssh}))
    gpuprov(tmp_path, "bootstrap", "--user", "root", "--identity", key)
    assert node.run(f"sudo -n sh -c '{LABELS}'", user=ADMIN).stdout == "Enforcing\n"
    with open_session(Target(node.name, node.address, Connection.model_validate(ssh)), LIMITS) as session:
        arm(session, Guard(20), "lost")
    node.run(f"rm -r /home/{ADMIN}/.ssh && {UNTIL_RESTORED}")
    assert node.run(f"sudo -n sh -c '{LABELS}'", user=ADMIN).stdout == "Enforcing\n"


def unlabelled(folder: Path) -> tuple[Any, Any]:
    """Return the ports without sshd's label that drift and verify see, each None if there are none."""
    [drifted] = json.loads(gpuprov(folder, "drift", "-o", "json", code=None).stdout)["nodes"]
    [verified] = json.loads(gpuprov(folder, "verify", "-o", "json", code=None).stdout)["nodes"]
    status = {each["check"]: each["status"] for each in verified["checks"]}
    assert status["ssh.port_labels"] in ("passed", "failed"), verified["message"]
    lists = (drifted["drift"], [each for each in verified["checks"] if each["status"] == "failed"])
    drift, verify = ({each["check"]: each["actual"] for each in found} for found in lists)
    return drift.get("ssh.port_labels"), verify.get("ssh.port_labels")


def test_both_witnesses_name_a_port_that_loses_its_label(module_lab: Lab, node: Node, tmp_path: Path) -> None:
    """Check a port that no policy names, one that the policy gives to others, and one of the site's."""
    mirror = nvidia.build(tmp_path / "mirror", load(), ["rhel9"])
    apply = ("apply", "--yes", "--no-verify", "--guard", "600", "--role", "ssh_hardening")
    with served(mirror.root) as server:
        urls = mirror.urls(server.url)
        fleet = yaml.safe_load(module_lab.fleet("hgx-a100-4")) | {
            "repositories": {name: {"url": url, "key": str(mirror.key)} for name, url in urls.items()}
        }
        [group] = fleet["groups"].values()
        group |= {"os": "rhel9", "stack": {"repository": "nvidia", "driver": "580.126.16"}}

        def lock(port: int) -> None:
            """Lock the fleet with another port of sshd."""
            group["settings"] = {"kernel": node.kernel, "ssh": {"port": port}}
            (tmp_path / "fleet.yml").write_text(yaml.safe_dump(fleet))
            gpuprov(tmp_path, "lock")

        for port in (2222, OF_POLICY):
            lock(port)
            assert unlabelled(tmp_path) == ([str(port)], [str(port)])
            applied = gpuprov(tmp_path, *apply, code=None)
            assert "failed" not in applied.stdout, applied.stdout + applied.stderr
            assert unlabelled(tmp_path) == (None, None), applied.stdout + applied.stderr
            assert f":{port} " in node.run("ss -Hltn").stdout, applied.stdout + applied.stderr
        node.run(f"semanage port --delete --proto tcp {OF_POLICY}")
        assert unlabelled(tmp_path) == ([str(OF_POLICY)], [str(OF_POLICY)])
        node.run(f"semanage port --add --type http_port_t --proto tcp {CLAIMED}")
        lock(CLAIMED)
        assert unlabelled(tmp_path) == ([str(CLAIMED)], [str(CLAIMED)])
        refused = gpuprov(tmp_path, *apply, code=None)
        assert f"semanage port --delete --proto tcp {CLAIMED}" in refused.stdout + refused.stderr
