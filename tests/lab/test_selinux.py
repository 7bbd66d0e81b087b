"""A virtual node of RHEL's family that enforces SELinux: sshd may read keys after bootstrap and a restore.

A boot takes a minute and more. `scripts/campaign lockout --selinux` applies SSH and firewall to such a node.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpuprov.access.deadman import FOLDER, LIMITS, Guard, arm
from gpuprov.model.connection import Connection
from gpuprov.ssh.transport import Target, open_session
from gpuprov_lab import Lab, Node
from tests.lab.command_line import gpuprov
from tests.systems import IMAGES

pytestmark = pytest.mark.slow
ADMIN = "ops"
UNTIL_RESTORED = f"timeout 200 sh -c 'until test -e {FOLDER}/restored; do sleep 2; done'"
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
