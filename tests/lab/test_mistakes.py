"""Common mistakes of operators: one clear line, the right exit code, and never a traceback."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuprov_lab import Lab
from gpuprov_lab.variants import with_admin, with_os_release, without_python
from tests.lab.command_line import gpuprov

UBUNTU_19 = 'ID=ubuntu\nVERSION_ID="19.10"\nPRETTY_NAME="Ubuntu 19.10"\n'


@pytest.fixture(scope="module")
def fleet(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the fleet and lock of nodes with different faults."""
    folder = tmp_path_factory.mktemp("fleet")
    steps: dict[str, list[Callable[[Path], None]]] = {
        "bare": [without_python],
        "old": [with_os_release(UBUNTU_19)],
        "asking": [with_admin("asking", password="secret")],  # noqa: S106
        "down": [],
    }
    for name, prepare in steps.items():
        module_lab.up(1, gpu="a100x4", names=[name], prepare=prepare)
    (folder / "fleet.yml").write_text(module_lab.fleet("hgx-a100-4"))
    gpuprov(folder, "lock")
    keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "other-key"]
    subprocess.run(keygen, check=True)
    module_lab.node("down").stop()
    return folder


@pytest.mark.parametrize(
    ("host", "ssh", "code", "says"),
    [
        ("bare", {}, 1, "no Python 3 on the node"),
        ("old", {}, 3, "system.os expected debian12, is ubuntu19.10"),
        ("down", {}, 4, "connection refused; check the address, and that it is up"),
        ("asking", {"user: root": "user: asking"}, 1, "asking may not use sudo without a password"),
        ("asking", {"identity_file: .*": "identity_file: other-key"}, 4, "refused the key"),
    ],
    ids=["no Python", "unsupported system", "down", "no root rights", "wrong key"],
)
def test_a_plan_says_it_in_one_line(
    fleet: Path, host: str, ssh: dict[str, str], code: int, says: str
) -> None:
    path = fleet / "fleet.lock.yml"
    locked = path.read_text()
    for pattern, instead in ssh.items():
        path.write_text(re.sub(pattern, instead, locked))
    planned = gpuprov(fleet, "plan", host, code=None)
    path.write_text(locked)
    assert planned.returncode == code, planned.stdout + planned.stderr
    assert len([line for line in planned.stdout.splitlines() if says in line]) == 1, planned.stdout


def test_an_unsupported_system_is_refused_before_anything_changes(fleet: Path) -> None:
    applied = gpuprov(fleet, "apply", "old", "--yes", code=1)
    assert "old  changed=0  FAILED  preflight: the node runs ubuntu19.10" in applied.stdout
