"""Every kind of connection in every verb: port, bastion, alias of ~/.ssh/config, certificate, agent, user.

One node for each kind, all in one group. The aliases are in a real ~/.ssh/config: the folder is mounted over
root's in a private mount namespace of the command.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.locking.build import build_lock
from gpuprov.model.lock import write_lock
from gpuprov_lab import Lab, Node
from tests.lab.command_line import gpuprov, in_place_of_ssh, with_own_state
from tests.lab.upgrade_fleet import NEWER, ROLLOUT, provisioned

WAYS = ("port", "bastion", "alias", "certificate", "agent", "user")
PORT = 2222
CONFIG = """\
Host rented
  HostName {alias}
  User root
  IdentityFile {lab}
Host certified
  HostName {certificate}
  IdentityFile {folder}/certified
  CertificateFile {folder}/signed-cert.pub
  IdentityAgent none
"""
THREADS = {"fleet.lock.yml": 4, "next.lock.yml": 8}
"""Lock → value of OMP_NUM_THREADS that a role writes for logins."""


@dataclass(frozen=True)
class Site:
    """A folder with a fleet, and the environment of its commands."""

    folder: Path
    nodes: dict[str, Node]
    agent: str

    @property
    def program(self) -> tuple[str, ...]:
        """Command prefix that puts the site's folder in place of ~/.ssh, and sets the site's agent."""
        return in_place_of_ssh(self.folder / "ssh", f'SSH_AUTH_SOCK={self.agent} exec "$@"')

    def gpuprov(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run gpuprov."""
        program = (*self.program, sys.executable, "-m", "gpuprov")
        return gpuprov(self.folder, *words, code=code, program=program)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run another program."""
        return subprocess.run(
            [*self.program, *words],
            cwd=self.folder,
            env=with_own_state(self.folder),
            capture_output=True,
            text=True,
            check=False,
        )

    def states(self, *words: str) -> dict[str, Any]:
        """Return kind of connection → its node in a verb's JSON output."""
        done = self.gpuprov(*words, "-o", "json", code=None)
        assert done.stdout, done.stderr
        return {node["name"]: node for node in json.loads(done.stdout)["nodes"]}


def make_key(path: Path) -> str:
    """Make a key at a path; return its public part."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", path], check=True)
    return path.with_name(f"{path.name}.pub").read_text()


@pytest.fixture(scope="module")
def site(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Provide a fleet with a node for each kind of connection, and a gate before them."""
    folder = tmp_path_factory.mktemp("site")
    fleet = provisioned(module_lab, tmp_path_factory.mktemp("first"), 1 + len(WAYS))
    nodes = dict(zip([*WAYS, "gate"], fleet.nodes, strict=True))
    operator, agent = make_key(folder / "operator"), make_key(folder / "by-agent")
    make_key(folder / "certified")
    authority = make_key(folder / "authority")
    sign = ["ssh-keygen", "-q", "-s", "authority", "-I", "t", "-n", "root", "-V", "+1d", "signed.pub"]
    shutil.copy(folder / "certified.pub", folder / "signed.pub")
    subprocess.run(sign, cwd=folder, check=True)
    nodes["gate"].run("cat >>/root/.ssh/authorized_keys", input=operator)
    nodes["agent"].run("cat >>/root/.ssh/authorized_keys", input=agent)
    # Root's own file: an authority in sshd's configuration that fleet.yml does not state is a difference.
    nodes["certificate"].run("cat >>/root/.ssh/authorized_keys", input=f"cert-authority {authority}")
    nodes["port"].run(
        f"echo 'Port {PORT}' >/etc/ssh/sshd_config.d/port.conf && systemctl restart ssh", check=False
    )
    write_site(module_lab, folder, nodes)
    socket = str(folder / "agent.sock")
    started = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    try:
        while not Path(socket).exists():
            assert started.poll() is None
        environment = {**os.environ, "SSH_AUTH_SOCK": socket}
        subprocess.run(["ssh-add", "-q", folder / "by-agent"], env=environment, check=True)
        (folder / "by-agent").unlink()
        yield Site(folder, nodes, socket)
    finally:
        started.terminate()
        started.wait()


def write_site(lab: Lab, folder: Path, nodes: dict[str, Node]) -> None:
    """Write the fleet, ~/.ssh/config, and the known host keys."""
    address = {name: node.address for name, node in nodes.items()}
    (folder / "ssh").mkdir(mode=0o700)
    places = {"lab": lab.identity_file, "folder": folder}
    (folder / "ssh/config").write_text(CONFIG.format(**address, **places))
    shutil.copy(lab.known_hosts, folder / "vouched")
    known = [
        line for line in lab.known_hosts.read_text().splitlines(True) if line.startswith(address["gate"])
    ]
    (folder / "known_hosts").write_text("".join(known))
    key = {"identity_file": str(folder / "operator")}
    hosts = {
        "port": {"address": f"{address['port']}:{PORT}", "ssh": key},
        "bastion": {"address": address["bastion"], "ssh": {"jump": f"root@{address['gate']}", **key}},
        "alias": "rented",
        "certificate": "certified",
        "agent": address["agent"],
        "user": {"address": address["user"], "ssh": {"user": "ops", **key}},
    }
    ssh = {"known_hosts": str(folder / "known_hosts")}
    fleet = yaml.safe_load(lab.fleet("hgx-a100-4")) | {"ssh": ssh}
    [group] = fleet["groups"].values()
    group |= {"hosts": hosts, "stack": {"repository": "distribution", "driver": NEWER}}
    fleet |= {"groups": {"train": group}, "rollout": {**ROLLOUT, "canary": "none", "serial": ["100%"]}}
    for name, threads in THREADS.items():
        tuning = {"environment": {"OMP_NUM_THREADS": threads}}
        group["settings"] = group.get("settings", {}) | {"tuning": tuning}
        (folder / "fleet.yml").write_text(yaml.safe_dump(fleet, sort_keys=False))
        write_lock(build_lock(folder / "fleet.yml"), folder / name)


def test_bootstrap(site: Site) -> None:
    """Use the keys of provider and alias, the certificate and the agent, with host keys from a file."""
    lab_key = str(next(iter(site.nodes.values())).lab_folder / "id_ed25519")
    words = ("--key", "operator.pub", "--host-key", "vouched")
    result = site.states(
        "bootstrap", "port", "bastion", "user", *words, "--user", "root", "--identity", lab_key
    )
    result |= site.states("bootstrap", "alias", "certificate", "agent", *words)
    assert {name: each["message"] for name, each in result.items()} == dict.fromkeys(WAYS)
    assert "account ops made" in result["user"]["changed"]
    # From now on each node accepts only its own kind of connection.
    only = f'from="{site.nodes["gate"].address}"'
    site.nodes["bastion"].run(f"sed -i '/operator$/s/^/{only} /' /root/.ssh/authorized_keys")
    for name in ("certificate", "agent", "alias"):
        site.nodes[name].run("sed -i '/operator$/d' /root/.ssh/authorized_keys")
    again = site.states("bootstrap", *WAYS[:2], "user", *words)
    assert {each["status"] for each in again.values()} == {"ready"}


def test_drift(site: Site) -> None:
    """Check that drift finds the same difference over each kind of connection."""
    result = site.states("drift")
    found = {name: ",".join(each["check"] for each in node["drift"]) for name, node in result.items()}
    assert found == dict.fromkeys(WAYS, "tuning.environment")


@pytest.mark.slow
def test_apply(site: Site) -> None:
    """Check that nodes are in sync after apply over each kind of connection."""
    site.gpuprov("apply", "--yes")
    result = site.states("drift")
    assert {name: each["status"] for name, each in result.items()} == dict.fromkeys(WAYS, "in_sync")


@pytest.mark.slow
def test_verify(site: Site) -> None:
    """Check that verify passes over each kind of connection."""
    result = site.states("verify")
    assert {name: each["status"] for name, each in result.items()} == dict.fromkeys(WAYS, "passed")


@pytest.mark.slow
def test_upgrade(site: Site) -> None:
    """Check that an upgrade succeeds over each kind of connection."""
    result = site.states("upgrade", "--to", "next.lock.yml", "--yes")
    assert {name: node["stands"] for name, node in result.items()} == dict.fromkeys(WAYS, "new")


def test_ansible_ping_over_the_generated_inventory(site: Site) -> None:
    site.gpuprov("inventory", "generate", "out")
    done = site.run(str(Path(sys.executable).with_name("ansible")), "-i", "out", "train", "-m", "ping", "-o")
    said = {line.split(" ")[0]: "SUCCESS" in line for line in done.stdout.splitlines()}
    assert said == dict.fromkeys(WAYS, True), done.stdout + done.stderr
