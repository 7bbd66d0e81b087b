"""gpuprov installed by pip on a lab node, and observed from outside without a login."""

from __future__ import annotations

import json
import shlex
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpuprov_lab import Lab, Node
from tests import ROOT, is_defect
from tests.lab.stub_compiler import play_compiler
from tests.lab.upgrade_fleet import NEWER, OLDER

PROGRAM = "/opt/gpuprov/bin/gpuprov"
FOLDER = "/root/fleet"
UNIT = "etc/systemd/system/gpuprov-resume.service"


@dataclass(frozen=True)
class LocalNode:
    """A node that is its own controller."""

    node: Node

    def gpuprov(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run gpuprov in a login.

        Args:
            code: the required exit code; None allows any.

        Raises:
            AssertionError: another exit code, or a traceback in the output.
        """
        done = self.node.run(f"cd {FOLDER} && {PROGRAM} {shlex.join(words)}", check=False)
        assert not is_defect(done.stdout + done.stderr), done.stderr
        assert code in (None, done.returncode), done.stdout + done.stderr
        return done

    def alone(self, *words: str) -> None:
        """Start gpuprov in a transient unit, so that it runs on after the login ends."""
        self.node.run(
            f"systemd-run --quiet --unit=typed-{time.monotonic_ns()} --setenv=HOME=/root"
            f" --working-directory={FOLDER} {PROGRAM} {shlex.join(words)}"
        )

    def await_end(self, verb: str, seconds: float = 900, *, before: int = 0) -> dict[str, Any]:
        """Wait for a verb's last run to end; return its history entry, read from the disk without a login.

        Args:
            before: number of runs of the verb before this one.

        Raises:
            AssertionError: after `seconds` without an ended run.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            runs = self.runs(verb)
            waits = (self.node.root / UNIT).exists() or "rebooting" in str(runs and runs[-1]["reason"])
            if len(runs) > before and not waits:
                return runs[-1]
            time.sleep(1)
        raise AssertionError(f"{self.runs(verb)}: {self.node.console.read_text(errors='replace')[-2000:]}")

    def runs(self, verb: str) -> list[dict[str, Any]]:
        """Return a verb's runs in the node's history; empty while it is not readable."""
        path = self.node.root / "root/.local/state/gpuprov/history.sqlite"
        runs = "SELECT id, status, reason, drift FROM nodes JOIN runs ON run = number"
        query = f"{runs} WHERE verb = ? ORDER BY number"
        try:
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
                rows = database.execute(query, (verb,)).fetchall()
        except sqlite3.Error:
            return []
        return [dict(zip(("id", "status", "reason", "drift"), row, strict=True)) for row in rows]

    def states(self, *words: str) -> dict[str, Any]:
        """Return the only node in a command's JSON output."""
        [node] = json.loads(self.gpuprov(*words, "-o", "json", code=None).stdout)["nodes"]
        assert isinstance(node, dict)
        return node


def wheels(folder: Path) -> Path:
    """Build the wheels of gpuprov and its dependencies."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--wheel-dir", folder, ROOT], check=True)
    return folder


def installed(lab: Lab, folder: Path) -> LocalNode:
    """Return a new node with gpuprov installed from its wheel and a site profile for the node's kernel."""
    [node] = lab.up(1, gpu="a100x4")
    play_compiler(node, NEWER, OLDER)
    node.run("apt-get -q update && apt-get -qy install python3-venv openssh-client")
    (node.root / "opt/wheels").mkdir()
    for wheel in wheels(folder).glob("*.whl"):
        (node.root / "opt/wheels" / wheel.name).write_bytes(wheel.read_bytes())
    node.run(
        "python3 -m venv /opt/gpuprov"
        " && /opt/gpuprov/bin/pip install -q --no-index --find-links /opt/wheels /opt/wheels/gpuprov-*.whl"
    )
    node.run(f"mkdir -p {FOLDER}/profiles")
    profile = {
        "description": "as the lab has it",
        "extends": "hgx-a100-4",
        "stack": {"repository": "distribution", "driver": NEWER},
        "settings": {"kernel": node.kernel},
    }
    (node.root / FOLDER[1:] / "profiles/site-a100.yml").write_text(yaml.safe_dump(profile))
    return LocalNode(node)
