"""An OpenSSH without Include, and a systemd that rejects what later ones accept: RHEL 8 has both."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuprov.access.scripts import SHARED, node_script
from tests import ROOT
from tests.unit.programs import write_program
from tests.unit.roles.scripts import script

OLD = "! grep -q Include || { echo '/dev/stdin: line 1: Bad configuration option: Include'; exit 255; }"
NEW = "cat >/dev/null"
REST = "UsePAM yes\nPasswordAuthentication yes\n"


@pytest.fixture(params=["old", "new"])
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Put an sshd into PATH; return whether it does not know Include."""
    old: bool = request.param == "old"
    (tmp_path / "bin").mkdir()
    write_program(tmp_path / "bin/sshd", OLD if old else NEW)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
    return old


def write_first(folder: Path) -> int:
    """Write an option with the shell function, in a folder in place of /etc/ssh; return its exit status."""
    functions = "".join(node_script("gpuprov.access", f"node/{each}") for each in SHARED)
    script = f"{functions}\necho PasswordAuthentication no | write_first /etc/ssh/sshd_config.d/00-a.conf"
    said = subprocess.run(["sh", "-c", script.replace("/etc/ssh/", f"{folder}/")], check=False)
    return said.returncode


def test_the_first_options_are_in_a_drop_in_or_in_a_block_and_never_written_twice(
    old: bool, tmp_path: Path
) -> None:
    config, drop_in = tmp_path / "sshd_config", tmp_path / "sshd_config.d/00-a.conf"
    drop_in.parent.mkdir()
    config.write_text(REST)
    assert write_first(tmp_path) == 0
    lines = "PasswordAuthentication no\n"
    block = f"# BEGIN gpuprov\n{lines}ChallengeResponseAuthentication no\n# END gpuprov\n"
    assert config.read_text() == (block + REST if old else REST)
    assert drop_in.exists() is not old
    assert old or drop_in.read_text() == lines
    before = config.read_text()
    assert write_first(tmp_path) != 0
    assert config.read_text() == before


def test_the_role_asks_sshd_whether_it_knows_drop_ins(old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["look.py", '{"options": {}, "login": "root"}'])
    look: Any = script("ssh_hardening")
    assert look.has_drop_ins() is not old


def units() -> list[str]:
    """Return the texts of the units that gpuprov writes on nodes, with the names of their files."""
    files = [*ROOT.glob("gpuprov/**/node/*.service"), *ROOT.glob("roles/*/templates/*.service.j2")]
    switch = (ROOT / "gpuprov/access/node/deadman.sh").read_text()
    return [f"{path.name}\n{path.read_text()}" for path in files] + re.findall(
        r'(?s)write_unit (\S+\.service ".*?)" \|\| return', switch
    )


@pytest.mark.parametrize("text", units(), ids=lambda text: text.partition("\n")[0])
def test_no_unit_is_a_oneshot_that_is_started_again(text: str) -> None:
    """systemd 239 refuses such a unit, and then the timer of the dead man's switch."""
    assert not ("Type=oneshot" in text and re.search(r"(?m)^Restart=", text))
