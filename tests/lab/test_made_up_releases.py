"""A made-up release of each family on a node: rows of tables are enough for lock, roles, drift and verify.

The nodes are Debian and the played Rocky Linux 9 with another os-release; docs/proof.md has what they do not
show. `tests/unit/locking/test_made_up_releases.py` has the plan and preflight's objections.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.catalog import load
from gpuprov.locking.build import build_lock
from gpuprov_lab import Lab
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.serve import served
from gpuprov_lab.variants import with_os_release
from tests.lab.node_under_test import NodeUnderTest
from tests.made_up import MADE_UP, OS_RELEASE, known, site_catalog
from tests.systems import IMAGES

pytestmark = pytest.mark.slow
LIKE = {"ubuntu98.04": "debian13", "debian97": "debian13", "rhel97": "rhel9", "amzn2097": "rhel9"}
"""Release → the system whose node plays it."""
NAMES = {
    "ubuntu": "Ubuntu",
    "debian": "Debian GNU/Linux",
    "rocky": "Rocky Linux",
    "amzn": "Amazon Linux",
}
"""ID → NAME in os-release, by which Ansible knows the family."""
STACK = {"driver": 580, "cuda": "13.0", "nccl": "auto", "repository": "nvidia"}


@dataclass
class MadeUpNode(NodeUnderTest):
    """A node of a made-up release."""

    roles = ("preflight", "repositories", "nvidia_driver", "cuda_toolkit", "nccl", "package_pins")
    areas = ("system.", "repositories.", "driver.", "nouveau.", "cuda.", "nccl.", "pins.")


@pytest.fixture(params=MADE_UP)
def node(
    request: pytest.FixtureRequest, lab: Lab, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MadeUpNode]:
    """A new node of a made-up release with a mirror, and its lock."""
    system: str = request.param
    site = site_catalog(tmp_path_factory.mktemp("catalog"))
    with ExitStack() as stack:
        stack.enter_context(known(tmp_path_factory.mktemp("table")))
        mirror = nvidia.build(tmp_path / "mirror", load([site]), [system])
        server = stack.enter_context(served(mirror.root))
        identity, version = OS_RELEASE[system]
        release = f'NAME="{NAMES[identity]}"\nID="{identity}"\nVERSION_ID="{version}"\n'
        [machine] = lab.up(1, os=IMAGES[LIKE[system]], gpu="a100x4", prepare=[with_os_release(release)])
        key = str(mirror.key)
        ssh: dict[str, Any] = yaml.safe_load(lab.fleet("hgx-a100-4"))["ssh"]
        fleet = {
            "ssh": ssh,
            "catalog_dirs": [str(site)],
            "groups": {
                "train": {
                    "profile": "hgx-a100-4",
                    "os": system,
                    "hosts": {machine.name: machine.address},
                    "stack": STACK,
                    "settings": {"kernel": machine.kernel},
                }
            },
            "repositories": {name: {"url": url, "key": key} for name, url in mirror.urls(server.url).items()},
        }
        (tmp_path / "fleet.yml").write_text(yaml.safe_dump(fleet))
        node = MadeUpNode(machine, tmp_path)
        node.lock = build_lock(tmp_path / "fleet.yml")
        yield node


def test_its_row_is_enough_to_apply_and_to_judge_it(node: MadeUpNode) -> None:
    outcome, _ = node.apply()
    assert outcome.ok, outcome.failed
    outcome, changed = node.apply()
    assert outcome.ok, outcome.failed
    assert changed == []
    node.node.reboot()
    assert node.drift() == {}
    assert node.failed() == {}
