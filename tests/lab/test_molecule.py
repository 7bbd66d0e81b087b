"""Molecule's scenarios, whole: check, converge, idempotence, verify. Only the compiler's work is played."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
SCENARIOS = sorted(path.parent.name for path in CHECKOUT.glob("molecule/*/molecule.yml"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_runs_through(scenario: str) -> None:
    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "GPUPROV_COMPILER": "played",
        "NO_COLOR": "1",
    }
    molecule = [programs / "molecule", "test", "--scenario-name", scenario]
    done = subprocess.run(
        molecule, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
