"""The first verdict after a boot, as drift and verify see it: both allow the same time for it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprov.drift.observations import health as observation
from gpuprov.probe.parse.verdict import parse_verdict
from gpuprov.roles import Expectation
from gpuprov.roles.health import FIRST_S, VERDICT
from gpuprov.verify.suite import test_health as suite

BOOT = "6f1d3a52-7c1e-4f0e-9a55-0123456789ab"
BEGAN = 4000
"""Time at which the system began to boot: a container does so after its machine."""
EXPECTED = Expectation("health.verdict", "fresh", "health")


def drift(line: str | None, passed: float) -> str:
    """Return what drift observes of a verdict's line (None: no file), `passed` seconds after the start of the
    system.
    """
    raw = {"line": line, "uptime": BEGAN + passed, "began": BEGAN, "boot_id": BOOT}
    facts: Any = SimpleNamespace(verdict=parse_verdict(raw), booted_s=raw["uptime"] - raw["began"])
    return observation._verdict(facts, EXPECTED)


def verify(folder: Path, line: str | None, passed: float) -> str:
    """Return why verify's check fails `passed` seconds after the start of the system, "" if it passes."""
    stat = f"1 (systemd (x)) S {' '.join('0' * 18)} {BEGAN * 100} 1\n"
    files = {"uptime": f"{BEGAN + passed} 1\n", "boot_id": f"{BOOT}\n", "stat": stat, "line": line}
    paths = {
        "/proc/uptime": "uptime",
        "/proc/sys/kernel/random/boot_id": "boot_id",
        "/proc/1/stat": "stat",
        VERDICT: "line",
    }
    for name, text in files.items():
        if text is not None:
            (folder / name).write_text(text)

    def run(command: str) -> SimpleNamespace:
        """Run a command of verify on this machine with the test's files."""
        for path, name in paths.items():
            command = command.replace(path, str(folder / name))
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        return SimpleNamespace(stdout=done.stdout)

    host: Any = SimpleNamespace(run=run)
    try:
        suite.test_the_verdict_is_fresh(host, "fresh")
    except AssertionError as error:
        return str(error).splitlines()[0]
    return ""


@pytest.mark.parametrize("line", [None, "watch another 9000 150 1 - text\n"], ids=["missing", "earlier"])
def test_the_first_verdict_is_due_some_time_after_the_boot(tmp_path: Path, line: str | None) -> None:
    for passed, is_due in ((5.2, False), (FIRST_S - 1, False), (FIRST_S + 1, True), (86400.0, True)):
        assert (drift(line, passed) != "fresh", verify(tmp_path, line, passed) != "") == (is_due, is_due)


def test_an_old_verdict_of_this_boot_is_not_excused(tmp_path: Path) -> None:
    line = f"healthy {BOOT} {BEGAN} 100 1 - \n"
    assert (drift(line, 90), verify(tmp_path, line, 90)) == ("fresh", "")
    assert drift(line, 150) == "150 s old, valid for 100 s"
    assert "150 s old, valid for 100 s" in verify(tmp_path, line, 150)
