"""Public keys that `bootstrap` installs because fleet.yml names their private halves: they are shown."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuprov.bootstrap import run
from gpuprov.cli.bootstrap import command

FLEET = """\
groups: {g: {profile: hgx-h200-4, os: debian12, hosts: {gpu01: 192.0.2.1, gpu02: 192.0.2.2}}}
ssh: {identity_file: keys/fleet, known_hosts: known}
"""


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enter a folder with a fleet and its keys; no node is contacted."""
    (tmp_path / "keys").mkdir()
    for name in ("fleet", "other"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "keys" / name], check=True
        )
    (tmp_path / "fleet.yml").write_text(FLEET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "bootstrap", lambda *_, **__: [])


def test_a_key_that_the_fleet_names_is_shown_once_with_path_and_fingerprint() -> None:
    done = CliRunner().invoke(command, [])
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", "keys/fleet.pub"], capture_output=True, text=True, check=True
    )
    assert done.output.count(f"may log in: keys/fleet.pub  {shown.stdout.split()[1]}") == 1, done.output


def test_a_key_that_the_command_names_is_not_repeated() -> None:
    assert "SHA256" not in CliRunner().invoke(command, ["--key", "keys/other.pub"]).output


def test_a_key_that_is_not_base64_is_none() -> None:
    Path("keys/fleet.pub").write_text("ssh-ed25519 A x\n")
    assert "keys/fleet.pub is not a public key" in str(CliRunner().invoke(command, []).exception)
