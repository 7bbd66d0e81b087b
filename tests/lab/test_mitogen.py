"""Ansible's own execution and Mitogen's on one new node each, then compared.

A node provisioned by one needs no changes by the other, and both report failures alike.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from gpuprov.apply.strategy import OLDEST, REQUEST
from gpuprov.model.lock import read_lock
from gpuprov_lab import Lab, Node
from tests.lab.command_line import PROGRAM, gpuprov
from tests.lab.stub_compiler import play_compiler

pytestmark = pytest.mark.slow

SETTINGS = {
    "persistence": True,
    "tuning": {"environment": {"OMP_NUM_THREADS": 8}, "limits": {"nofile": 4096}},
    "containers": {"shm_size": "1g"},
    "monitoring": {"textfile": "/var/lib/prometheus/node-exporter"},
    "ssh": {"max_auth_tries": 3},
    "firewall": {},
}
CONFIG = "/etc/docker/daemon.json"
DROP_IN = Path("/etc/systemd/system/docker.service.d/hand.conf")
REFUSING = f"[Service]\nExecStartPre=/bin/sh -c '! grep -qs shm {CONFIG}'\n"
OWN, MITOGEN = "with Ansible's own strategy", "with Mitogen's strategy"
OF_THE_NODE = ("ssh_host_*", "machine-id", "hostname", "hosts", "key.json", "ld.so.cache", "*~")
"""Files that differ on every node: names, keys, generated files, copies with a time in their names."""
STATE = (
    "dpkg-query -W -f '${db:Status-Abbrev}${Package} ${Version}\\n'; apt-mark showhold;"
    " systemctl list-unit-files --no-legend; find /etc /usr/local -type f "
    + " ".join(f"! -name '{name}'" for name in OF_THE_NODE)
    + " | sort | xargs md5sum"
)


@dataclass(frozen=True)
class Pair:
    """Two nodes, and a folder with their lock."""

    nodes: list[Node]
    folder: Path
    mitogen: Path

    def apply(self, node: Node, way: str) -> str:
        """Apply to one node by one execution method; return the output."""
        search = f"PYTHONPATH={self.mitogen}:{os.environ.get('PYTHONPATH', '')}"
        program = ("env", search, f"{REQUEST}=1", *PROGRAM) if way is MITOGEN else PROGRAM
        done = gpuprov(
            self.folder,
            "apply",
            "-l",
            node.name,
            "--yes",
            "--no-verify",
            "--debug",
            code=None,
            program=program,
        )
        assert f"tasks run {way}" in done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def pair(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Two nodes after apply, the first with Ansible's own connection, the second with Mitogen."""
    folder = tmp_path_factory.mktemp("ways")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", folder / "mitogen", f"mitogen=={OLDEST}"]
    subprocess.run(pip, check=True)
    nodes = module_lab.up(2, gpu="a100x4")
    fleet = yaml.safe_load(module_lab.fleet("hgx-a100-4"))
    [group] = fleet["groups"].values()
    group["stack"] = {"repository": "distribution", "driver": "535", "module_build": "dkms"}
    group["stack"] |= {"docker": "auto", "node_exporter": "auto"}
    group["settings"] |= SETTINGS
    (folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
    gpuprov(folder, "lock")
    [locked] = read_lock(folder / "fleet.lock.yml").groups.values()
    for node in nodes:
        play_compiler(node, locked.components.driver.version)
    pair = Pair(nodes, folder, folder / "mitogen")
    for node, way in zip(nodes, (OWN, MITOGEN), strict=True):
        said = pair.apply(node, way)
        assert "failed" not in said, said
    return pair


def test_both_ways_leave_the_same_packages_units_and_files(pair: Pair) -> None:
    own, mitogen = (set(node.run(STATE).stdout.splitlines()) for node in pair.nodes)
    assert own ^ mitogen == set()
    assert len(own) > 500


def test_each_way_finds_nothing_to_do_on_the_others_node(pair: Pair) -> None:
    for node, way in zip(pair.nodes, (MITOGEN, OWN), strict=True):
        before = node.run(STATE).stdout
        said = pair.apply(node, way)
        assert "changed=0" in said, said
        assert node.run(STATE).stdout == before


def test_docker_comes_with_the_driver_and_starts_once_with_its_configuration(pair: Pair) -> None:
    for node in pair.nodes:
        [result] = [
            each
            for each in node.run("cat /var/log/apt/history.log").stdout.split("\n\n")
            if "docker.io:" in each
        ]
        assert "libcuda1:" in result, result
        said = node.run("journalctl --unit=docker.service --output=cat").stdout
        assert said.count("API listen on") == 1, said
        node.run("docker info")


def test_a_daemon_that_does_not_start_is_reported_in_both_ways_and_its_configuration_reverted(
    pair: Pair,
) -> None:
    for node, way in zip(pair.nodes, (OWN, MITOGEN), strict=True):
        node.run(
            f"mkdir -p {DROP_IN.parent}; rm {CONFIG}; cat >{DROP_IN}; systemctl daemon-reload", input=REFUSING
        )
        said = pair.apply(node, way)
        assert "docker.service could not be restarted: Job for docker.service failed" in said, said
        assert "its former configuration is in place" in said
        assert node.run(f"test -e {CONFIG}", check=False).returncode == 1
        node.run(f"rm {DROP_IN}; systemctl daemon-reload")
        assert "FAILED" not in pair.apply(node, way)
