"""SSH and firewall on all played nodes, as fleets state them, before an auditor.

What such nodes do not show is in docs/proof.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.bootstrap.enter import python_of
from gpuprov.catalog import load
from gpuprov_lab import Lab, Node
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.serve import served
from tests.lab.auditor import complaints
from tests.lab.command_line import gpuprov
from tests.systems import IMAGES, OF_DNF, SSH

pytestmark = pytest.mark.slow
DRIVERS = {**dict.fromkeys(OF_DNF, "580.126.16"), "ubuntu26.04": "610.57.04"}
ROLES = ("--role", "ssh_hardening", "--role", "firewall")
OURS = ("ssh.", "firewall.")


@dataclass(frozen=True)
class Hardened:
    """A node with a fleet's SSH and firewall settings, and the folder of the fleet."""

    node: Node
    folder: Path

    def drift(self) -> dict[str, Any]:
        """Return the checks of SSH and firewall in drift, with their actual values."""
        [node] = json.loads(gpuprov(self.folder, "drift", "-o", "json", code=None).stdout)["nodes"]
        return {each["check"]: each["actual"] for each in node["drift"] if each["check"].startswith(OURS)}

    def failed(self) -> dict[str, Any]:
        """Return the checks of SSH and firewall that fail in verify; at least one must have passed."""
        [node] = json.loads(gpuprov(self.folder, "verify", "-o", "json", code=None).stdout)["nodes"]
        checks = [each for each in node["checks"] if each["check"].startswith(OURS)]
        assert any(each["status"] == "passed" for each in checks), node["message"]
        return {each["check"]: each["actual"] for each in checks if each["status"] == "failed"}


@pytest.fixture(scope="module", params=DRIVERS)
def hardened(
    request: pytest.FixtureRequest, module_lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hardened]:
    system: str = request.param
    folder = tmp_path_factory.mktemp("fleet")
    mirror = nvidia.build(folder / "mirror", load(), [system])
    [node] = module_lab.up(1, os=IMAGES[system], gpu="a100x4", names=[system.replace(".", "")])
    python = python_of(system)
    node.run(f"command -v {python} || dnf -q -y install {python}")
    with served(mirror.root) as server:
        urls = mirror.urls(server.url)
        fleet = {
            "ssh": yaml.safe_load(module_lab.fleet("hgx-a100-4"))["ssh"],
            "repositories": {name: {"url": url, "key": str(mirror.key)} for name, url in urls.items()},
            "groups": {
                "train": {
                    "profile": "hgx-a100-4",
                    "os": system,
                    "hosts": {node.name: node.address},
                    "stack": {"repository": "nvidia", "driver": DRIVERS[system]},
                    "settings": {"kernel": node.kernel, "ssh": SSH.get(system, {}), "firewall": {}},
                }
            },
        }
        (folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
        gpuprov(folder, "lock")
        yield Hardened(node, folder)


def test_before_it_the_auditor_complains(hardened: Hardened) -> None:
    assert complaints(hardened.node)


def test_after_it_both_witnesses_and_the_auditor_have_no_complaint(hardened: Hardened) -> None:
    apply = ("apply", "--yes", "--no-verify", *ROLES)
    applied = gpuprov(hardened.folder, *apply, code=None)
    assert "failed" not in applied.stdout, applied.stdout + applied.stderr
    assert hardened.drift() == hardened.failed() == {}
    found = complaints(hardened.node)
    if hardened.node.os in SSH:  # the policy `compatible` has algorithms of which the auditor warns
        found = [each for each in found if each[2] == "fail"]
    assert found == []
    again = json.loads(gpuprov(hardened.folder, *apply, "--full", "-o", "json", code=None).stdout)
    assert again["nodes"][0]["changed"] == 0
