"""Runs the unit tests with line and branch coverage of the packages that decide.

    scripts/campaign coverage [--missing]

The packages and the least total of lines and branches in percent are in pyproject.toml. Code that runs on
nodes is not counted: most tests start it as a program. `--missing` lists lines and branches that no test
runs. Exit 1 if the total is below the least one or a test fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

from coverage import Coverage

from tests import ROOT

UNIT_TESTS = ("-m", "pytest", "--numprocesses=auto", "--maxprocesses=4", "--dist=loadfile", "tests/unit")
COVERED = ("--cov", "--cov-report=", "--cov-fail-under=0")
"""Options of pytest-cov: the packages are in pyproject.toml."""
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]
PACKAGES = [Path(source).name for source in SETTINGS["run"]["source"]]


def main() -> int:
    """Run the tests, and print the coverage of each package; return 1 if a test fails or the total is too
    low.
    """
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--missing", action="store_true")
    options = arguments.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpuprov-coverage-") as folder:
        environment = {**os.environ, "COVERAGE_FILE": f"{folder}/data"}
        command = (sys.executable, *UNIT_TESTS, *COVERED)
        failed = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode != 0
        print(f"unit tests with coverage: {time.monotonic() - begun:.0f} s")
        low = reported(f"{folder}/data", missing=options.missing)
    return int(failed or low)


def reported(data: str, *, missing: bool = False) -> bool:
    """Print the coverage of each package; return whether the total is below the least one."""
    coverage = Coverage(data_file=data, config_file=str(ROOT / "pyproject.toml"))
    coverage.load()
    if missing:
        coverage.report(show_missing=True, skip_covered=True)
    written = Path(f"{data}.json")
    total = coverage.json_report(outfile=str(written))
    rooms: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for path, file in json.loads(written.read_text())["files"].items():
        rooms[Path(path).parts[1]].update({key: int(number) for key, number in file["summary"].items()})
    print("| package | lines | covered | branches | covered |\n|---|---|---|---|---|")
    for room, counted in sorted(rooms.items()):
        lines, branches = counted["num_statements"], counted["num_branches"]
        print(
            f"| {room} | {lines} | {counted['covered_lines'] / max(lines, 1):.1%} "
            f"| {branches} | {counted['covered_branches'] / max(branches, 1):.1%} |"
        )
    least = SETTINGS["report"]["fail_under"]
    print(f"lines and branches: {total:.1f} %, at least {least:g} %")
    return bool(total < least)


if __name__ == "__main__":
    sys.exit(main())
