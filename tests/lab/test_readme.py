"""The README's first screen, run as printed: a rented server, from nothing to verified."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from gpuprov_lab import Lab
from tests import ROOT
from tests.lab.command_line import gpuprov, in_place_of_ssh
from tests.lab.stub_compiler import play_compiler
from tests.lab.terminal import typed
from tests.lab.upgrade_fleet import NEWER

CODES = {"doctor": (1,), "discover": (0,), "plan": (3,)}
"""Exit codes of verbs that find faults or pending changes on a new server; all others exit with 0."""


def block(after: str) -> list[str]:
    """Return the first indented block after a text, without comments."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"\n\n((?: {4}.*\n)+)", text[text.index(after) :])
    assert found
    return [re.sub(r"\s+# .*", "", line.strip()) for line in found[1].splitlines()]


def test_a_rented_server(lab: Lab, tmp_path: Path) -> None:
    [node] = lab.up(1, gpu="a100x4")
    play_compiler(node, NEWER)
    node.run("echo 'Port 40022' >/etc/ssh/sshd_config.d/port.conf && systemctl restart ssh", check=False)
    (tmp_path / "ssh").mkdir(mode=0o700)
    shutil.copy(lab.identity_file, tmp_path / "ssh/id_ed25519")
    (tmp_path / "ssh/id_ed25519").chmod(0o600)
    # Site profile for the lab: the kernel is not the running one, and NVIDIA's repository is unreachable.
    site = {
        "description": "as the lab has it",
        "extends": "hgx-a100-4",
        "stack": {"repository": "distribution", "driver": NEWER},
        "settings": {"kernel": node.kernel},
    }
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/site-a100.yml").write_text(yaml.safe_dump(site))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    program = in_place_of_ssh(tmp_path / "ssh", f'PATH={path} exec sh -c "$1"')
    first, *lines = (line.replace("203.0.113.7", node.address) for line in block("**A rented server**"))
    assert len(lines) < 10
    code, said = typed(tmp_path, [*program, first], r"fingerprint\]\)", "yes")
    assert code == 0, said
    for line in lines:
        assert line.startswith("gpuprov "), line
        verb = next((each for each in CODES if f" {each} " in f"{line} "), "")
        done = gpuprov(tmp_path, line, code=None, program=program)
        assert done.returncode in CODES.get(verb, (0,)), f"{line}\n{done.stdout}{done.stderr}"
        if " apply " in line:
            assert "rebooted  verified (" in done.stdout


@pytest.mark.parametrize("line", block("**The machine you sit at**"))
def test_this_machine_is_typed_in_another_test(line: str) -> None:
    assert line in ("gpuprov apply --local --reboot --yes", "gpuprov history")
