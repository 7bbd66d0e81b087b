"""The README's first screen, run as printed: a rented server to verified, by one line and step by step."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
import yaml

from gpuprov.errors import Exit
from gpuprov_lab import Lab, Node
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


@dataclass(frozen=True)
class Rented:
    """A rented server on port 40022, and an operator's folder with a key that it accepts."""

    node: Node
    folder: Path

    @property
    def program(self) -> tuple[str, ...]:
        """Prefix of a command line, which runs with the operator's ~/.ssh."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return in_place_of_ssh(self.folder / "ssh", f'PATH={path} exec sh -c "$1"')

    def lines(self, after: str) -> list[str]:
        """Return the lines of a block with the node's address."""
        return [line.replace("203.0.113.7", self.node.address) for line in block(after)]


def rented(lab: Lab, folder: Path) -> Rented:
    """Return a server as a provider rents it, with another SSH port, and an operator's folder with a key and
    a profile.
    """
    [node] = lab.up(1, gpu="a100x4")
    play_compiler(node, NEWER)
    node.run("echo 'Port 40022' >/etc/ssh/sshd_config.d/port.conf && systemctl restart ssh", check=False)
    (folder / "ssh").mkdir(mode=0o700)
    shutil.copy(lab.identity_file, folder / "ssh/id_ed25519")
    (folder / "ssh/id_ed25519").chmod(0o600)
    # Site profile for the lab: the kernel is not the running one, and NVIDIA's repository is unreachable.
    site = {
        "description": "as the lab has it",
        "extends": "hgx-a100-4",
        "stack": {"repository": "distribution", "driver": NEWER},
        "settings": {"kernel": node.kernel},
    }
    (folder / "profiles").mkdir()
    (folder / "profiles/site-a100.yml").write_text(yaml.safe_dump(site))
    return Rented(node, folder)


@pytest.mark.slow
def test_a_rented_server_by_one_line(lab: Lab, tmp_path: Path) -> None:
    """Answer no, change fleet.yml, type the line again and answer yes: one question each time."""
    server = rented(lab, tmp_path)
    known = tmp_path / "ssh/known_hosts"
    [line] = server.lines("**A rented server**")
    code, said = typed(tmp_path, [*server.program, line], r"\[y/N\]", "no", seconds=900)
    assert code == Exit.INTERRUPTED, said
    assert "SHA256:" in said
    assert said.count("[y/N]") == 1
    assert not known.exists() or server.node.address not in known.read_text()
    assert "\nPackage: nvidia" not in (server.node.root / "var/lib/dpkg/status").read_text()
    fleet = tmp_path / "fleet.yml"
    fleet.write_text(fleet.read_text() + "security: ignore\n")
    code, said = typed(tmp_path, [*server.program, line], r"\[y/N\]", "yes", seconds=900)
    assert code == 0, said
    assert said.count("[y/N]") == 1
    assert "rebooted  verified (" in click.unstyle(said)
    assert server.node.address in known.read_text()
    again = gpuprov(tmp_path, f"{line} --yes", program=server.program)
    assert "nothing to do" in again.stderr
    assert gpuprov(tmp_path, "gpuprov drift", program=server.program).stdout.strip().endswith("in sync")


@pytest.mark.slow
def test_a_rented_server_step_by_step(lab: Lab, tmp_path: Path) -> None:
    server = rented(lab, tmp_path)
    first, *lines = server.lines("Each step is also a command:")
    assert len(lines) < 10
    code, said = typed(tmp_path, [*server.program, first], r"fingerprint\]\)", "yes")
    assert code == 0, said
    for line in lines:
        assert line.startswith("gpuprov "), line
        verb = next((each for each in CODES if f" {each} " in f"{line} "), "")
        done = gpuprov(tmp_path, line, code=None, program=server.program)
        assert done.returncode in CODES.get(verb, (0,)), f"{line}\n{done.stdout}{done.stderr}"
        if " apply " in line:
            assert "rebooted  verified (" in done.stdout


@pytest.mark.parametrize("line", block("**The machine you sit at**"))
def test_this_machine_is_typed_in_another_test(line: str) -> None:
    assert line in ("gpuprov apply --local --reboot --yes", "gpuprov history")
