"""Runs the unit tests with all cases of their tables; other runs try a sample of the longest ones.

scripts/campaign cases [PYTEST ARGUMENT]...
"""

from __future__ import annotations

import os
import sys

import pytest

from tests import ROOT
from tests.unit.samples import ALL


def main() -> int:
    """Run the unit tests, four files at a time; return pytest's exit code."""
    os.environ[ALL] = "1"
    how = ["--numprocesses=4", "--dist=loadfile", "--durations=20"]
    return int(pytest.main([*how, *(sys.argv[1:] or [str(ROOT / "tests/unit")])]))


if __name__ == "__main__":
    sys.exit(main())
