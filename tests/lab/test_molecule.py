"""Molecule's default scenario with a stub compiler: check, converge, idempotence, verify.

`scripts/campaign molecule` runs the others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

pytestmark = pytest.mark.slow

SCENARIOS = sorted(path.parent.name for path in ROOT.glob("molecule/*/molecule.yml"))


def molecule(scenario: str) -> subprocess.CompletedProcess[str]:
    """Run `molecule test` for a scenario."""
    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "GPUPROV_COMPILER": "played",
        "NO_COLOR": "1",
    }
    command = [programs / "molecule", "test", "--scenario-name", scenario]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_default_scenario_runs_through() -> None:
    done = molecule("default")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
