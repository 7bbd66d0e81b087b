"""Nodes that play further releases with dnf by the command line: from bootstrap to a second run.

`tests/lab/test_rhel_9_chain.py` has what follows on RHEL 9. What such nodes do not show is in docs/proof.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab import Lab
from gpuprov_lab.releases import BY_SYSTEM
from tests.lab.dnf_chain import STACK, new_chain
from tests.systems import OF_DNF

pytestmark = pytest.mark.slow
LACKING = ("podman", "node_exporter")
STACKS: dict[str, dict[str, Any]] = {
    "rhel8": {**STACK, "podman": "4.9"},
    "rhel10": {**STACK, "podman": "5.6"},
    "amzn2023": {
        **{name: version for name, version in STACK.items() if name not in LACKING},
        "docker": "25.0",
        "containerd": "auto",
    },
}
"""System → components of its fleet; Amazon's repository lacks some."""


def test_each_further_release_has_a_stack() -> None:
    assert set(STACKS) == {*OF_DNF} - {"rhel9"}


@pytest.mark.parametrize("system", STACKS)
def test_a_fresh_node_gets_everything_and_a_second_run_changes_nothing(
    system: str, lab: Lab, tmp_path: Path
) -> None:
    release = BY_SYSTEM[system]
    with new_chain(lab, tmp_path, system, STACKS[system]) as chain:
        assert chain.node.run("command -v apt-get apt dpkg dpkg-query", check=False).stdout == ""
        assert chain.node.kernel == release.kernel
        chain.state()
        chain.gpuprov("bootstrap")
        plan = chain.gpuprov("plan", code=3)
        assert "ssh_hardening, firewall" in plan.stdout
        applied = chain.gpuprov("apply", "--reboot", "--yes", code=None)
        assert "rebooted  verified" in applied.stdout, applied.stdout + applied.stderr
        assert chain.installed("nvidia-driver-cuda") == f"3:580.126.16-1.{release.dist.split('.')[0]}"
        assert chain.drift() == chain.failed() == {}
        assert "nothing to do" in chain.gpuprov("apply", "--yes").stderr
        changed = chain.gpuprov("apply", "--full", "--yes", "-o", "json")
        assert json.loads(changed.stdout)["nodes"][0]["changed"] == 0, changed.stderr
