"""A node that Ansible makes in Mitogen's way is the node that it makes in its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpuprov.apply.strategy import OLDEST
from gpuprov.lab import Lab
from gpuprov.model.lock import read_lock
from tests.lab.command_line import gpuprov
from tests.lab.stub_compiler import play_compiler

STATE = """\
dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\\n'; apt-mark showhold; apt-mark showmanual
systemctl list-unit-files --no-legend --state=enabled; sysctl kernel.numa_balancing net.core.rmem_max
find /etc /usr/local /usr/src /var/lib/gpuprov -type f ! -path '*/ssh_host_*' ! -path '*/lease*' \
 ! -name ld.so.cache ! -name hostname ! -name hosts ! -name machine-id ! -name '*.prom' ! -name textfile \
 -printf '%m %u ' -exec md5sum {} + | sort -k4
"""


@pytest.fixture(scope="module")
def mitogen(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH with Mitogen on it, which the tests' own environment does not have."""
    folder = tmp_path_factory.mktemp("mitogen")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    if subprocess.run([*pip, f"mitogen=={OLDEST}"], check=False).returncode:
        pytest.skip("no package index gives Mitogen")
    return f"{os.environ.get('PYTHONPATH', '')}:{folder}".lstrip(":")


def test_the_same_state(
    module_lab: Lab, tmp_path: Path, mitogen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = module_lab.up(2, gpu="a100x4")
    fleet = yaml.safe_load(module_lab.fleet("hgx-a100-4"))
    [group] = fleet["groups"].values()
    group["stack"] |= {"docker": "auto", "node_exporter": "auto"}
    group["settings"] |= {"ssh": {}, "firewall": {}, "tuning": {"numa_balancing": False}}
    (tmp_path / "fleet.yml").write_text(yaml.safe_dump(fleet))
    gpuprov(tmp_path, "lock")
    [locked] = read_lock(tmp_path / "fleet.lock.yml").groups.values()
    ways = {"its own way": os.environ.get("PYTHONPATH", ""), "Mitogen's way": mitogen}
    for node, (way, path) in zip(nodes, ways.items(), strict=True):
        play_compiler(node, locked.components.driver.version)
        monkeypatch.setenv("PYTHONPATH", path)
        done = gpuprov(tmp_path, "apply", "--yes", "--reboot", "--debug", "-l", node.name)
        assert f"carries out tasks in {way}" in done.stderr
    own, other = (node.run(STATE).stdout.splitlines() for node in nodes)
    assert own == other
    # And each finds nothing to do on what the other made.
    for node, path in zip(nodes, reversed(ways.values()), strict=True):
        monkeypatch.setenv("PYTHONPATH", path)
        done = gpuprov(tmp_path, "apply", "--yes", "--full", "-l", node.name)
        assert f"{node.name}  changed=0" in done.stdout + done.stderr
