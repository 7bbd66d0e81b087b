"""The collection without gpuprov: Ansible on the files of `gpuprov inventory generate`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpuprov_lab import Lab, Node
from tests import ROOT
from tests.campaign.ansible import cores
from tests.campaign.pythons import candidates, full_version, versions
from tests.lab.command_line import gpuprov
from tests.lab.conftest import fresh_lab_name
from tests.lab.plain_ansible import PlainAnsible, locked_nodes
from tests.lab.provisioned_node import provision

pytestmark = pytest.mark.slow
SITE, REBOOT = "gpuprov.gpuprov.site", "gpuprov.gpuprov.reboot"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("controller")


@pytest.fixture(scope="module")
def nodes(folder: Path) -> Iterator[list[Node]]:
    """Provide one provisioned node, whose fleet is in the folder."""
    with Lab(fresh_lab_name()) as lab:
        yield [provision(lab, folder)]


@pytest.fixture(scope="module")
def ansible(folder: Path, nodes: list[Node]) -> PlainAnsible:
    """Return Ansible with the collection and a generated inventory, without gpuprov."""
    gpuprov(folder, "inventory", "generate", "ansible")
    found = PlainAnsible(folder)
    found.install()
    return found


def test_site_brings_a_fresh_node_to_its_lock_and_changes_nothing_the_second_time(
    lab: Lab, tmp_path: Path
) -> None:
    [node] = locked_nodes(lab, tmp_path, 1)
    ansible = PlainAnsible(tmp_path)
    ansible.install()
    assert ansible.changes(SITE)[node.name] > 5
    ansible.changes(REBOOT, "-e", "gpuprov_reboot=true")
    assert ansible.changes(SITE) == {node.name: 0}
    gpuprov(tmp_path, "verify")


def test_site_changes_nothing_the_second_time(ansible: PlainAnsible, nodes: list[Node]) -> None:
    ansible.changes(SITE)
    assert ansible.changes(SITE) == {nodes[0].name: 0}


def test_a_role_stands_alone_in_a_playbook_of_ones_own(
    ansible: PlainAnsible, nodes: list[Node], folder: Path
) -> None:
    role = {"role": "gpuprov.gpuprov.gpu_settings", "vars": {"gpu_settings_graphics_clock_mhz": 1305}}
    play = {"name": "Clocks", "hosts": nodes[0].name, "become": True, "roles": [role]}
    (folder / "clocks.yml").write_text(yaml.safe_dump([play]))
    assert ansible.changes("clocks.yml")[nodes[0].name] > 0
    asked = "nvidia-smi --query-gpu=clocks.applications.graphics --format=csv,noheader,nounits"
    assert set(nodes[0].run(asked).stdout.split()) == {"1305"}
    assert ansible.changes("clocks.yml") == {nodes[0].name: 0}


def test_a_host_of_no_lock_is_refused(ansible: PlainAnsible, nodes: list[Node], folder: Path) -> None:
    (folder / "bare").mkdir()
    hosts = yaml.safe_load((folder / "ansible/hosts.yml").read_text())
    [group] = (each for each in hosts["all"]["children"].values() if "hosts" in each)
    address = group["hosts"][nodes[0].name]
    (folder / "bare/hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"bare": address}}}))
    with pytest.raises(AssertionError, match="has no variables of a lock for this host"):
        ansible.run("ansible-playbook", "-i", "bare", "-e", "ansible_connection=local", SITE)


def test_the_roles_that_are_named_run_and_no_others(ansible: PlainAnsible, nodes: list[Node]) -> None:
    nodes[0].run("apt-mark unhold libcuda1")
    named = '{"gpuprov_roles": ["package_pins"]}'
    assert ansible.changes(SITE, "--limit", nodes[0].name, "-e", named) == {nodes[0].name: 1}
    mistyped = '{"gpuprov_roles": ["package_pin"]}'
    with pytest.raises(AssertionError, match="gpuprov_roles names package_pin; expected some of preflight, "):
        ansible.changes(SITE, "--limit", nodes[0].name, "-e", mistyped)


def test_every_release_of_ansible_core_that_a_python_here_can_have() -> None:
    """Run the campaign `ansible` without nodes, with the newest Python that there is; about 60 s."""
    pythons = [name for name in candidates(versions()) if full_version(name)]
    newest = max(pythons, key=lambda name: [*map(int, full_version(name).split("."))])
    campaign = [sys.executable, "-m", "tests.campaign.ansible", newest, "--here"]
    done = subprocess.run(campaign, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    [good] = re.findall(r"(\d+) pairs good, 0 bad", done.stdout)
    assert int(good) == len(cores()) - done.stdout.count("this ansible-core wants"), done.stdout
