"""Functions of the dead man's switch that keep firewalld as it was, with a fake systemctl."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import ROOT
from tests.unit.programs import write_program

SCRIPT = (ROOT / "gpuprov/access/node/deadman.sh").read_text(encoding="utf-8")
FAKE = """\
echo "$*" >>{folder}/calls
case "$*" in
"is-enabled firewalld.service") cat {folder}/enabled; grep -q '^enabled$' {folder}/enabled ;;
*"is-active firewalld.service") cat {folder}/active; grep -q '^active$' {folder}/active ;;
"is-active sysinit.target") cat {folder}/booted ;;
"cat firewalld.service") test -e {folder}/there ;;
"start "*) exit {status} ;;
esac
"""


def called(folder: Path, function: str, status: int = 0, **state: str) -> tuple[int, str, list[str]]:
    """Run a function of the script; return its status and output, and the calls that change a unit."""
    for name in ("calls", "firewalld"):
        (folder / name).touch()
    (folder / "calls").write_text("")
    for name, text in {"enabled": "disabled", "active": "inactive", "booted": "active", **state}.items():
        (folder / name).write_text(f"{text}\n")
    write_program(folder / "systemctl", FAKE.format(folder=folder, status=status))
    functions = SCRIPT.partition("\ncase $1 in\narm)")[0].replace(". files.sh\n. sshd.sh\n", "")
    functions = functions.replace("home=/var/lib/gpuprov/deadman", f"home={folder}")
    done = subprocess.run(
        ["sh", "-c", f"{functions}\n{function}"], capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
    )  # fmt: skip
    calls = (folder / "calls").read_text().splitlines()
    return done.returncode, done.stdout, [each for each in calls if each.startswith(("start", "-q enable"))]


@pytest.mark.parametrize(
    ("enabled", "active", "said"),
    [
        ("enabled", "active", "enabled active\n"),
        ("masked", "failed", "masked failed\n"),
        ("", "", "none none\n"),
    ],
)
def test_its_state_is_recorded(tmp_path: Path, enabled: str, active: str, said: str) -> None:
    assert called(tmp_path, "firewalld_state", enabled=enabled, active=active)[1] == said


def test_it_starts_again_at_once_or_by_the_boot(tmp_path: Path) -> None:
    state = {"firewalld": "enabled active", "there": ""}
    both = ["-q enable firewalld.service", "start firewalld.service"]
    assert called(tmp_path, "start_firewalld", **state)[::2] == (0, both)
    assert called(tmp_path, "start_firewalld", **state, booted="inactive")[::2] == (
        0,
        [both[0], "start --no-block firewalld.service"],
    )
    assert called(tmp_path, "start_firewalld", **state, active="active")[::2] == (0, both[:1])
    assert called(tmp_path, "start_firewalld", 1, **state)[0] == 1


@pytest.mark.parametrize("recorded", ["disabled inactive", "none none", ""])
def test_one_that_was_off_stays_off(tmp_path: Path, recorded: str) -> None:
    """Check that restoring starts no firewalld that was not running before."""
    assert called(tmp_path, "start_firewalld", firewalld=recorded, there="")[::2] == (0, [])


def test_one_that_is_not_installed_is_not_waited_for(tmp_path: Path) -> None:
    assert called(tmp_path, "start_firewalld", 1, firewalld="enabled active")[::2] == (0, [])
