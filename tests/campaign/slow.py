"""Runs the node tests that take too long for every run: `scripts/test --all` leaves them out.

scripts/campaign slow [PYTEST ARGUMENT]...
"""

from __future__ import annotations

import sys

import pytest

from tests import ROOT


def main() -> int:
    """Run the node tests that are marked as slow, two files at a time; return pytest's exit code."""
    how = ["--numprocesses=2", "--dist=loadfile", "-p", "tests.lab.selection", "-m", "slow", "--timeout=2400"]
    return int(pytest.main([*how, "--durations=20", *(sys.argv[1:] or [str(ROOT / "tests/lab")])]))


if __name__ == "__main__":
    sys.exit(main())
