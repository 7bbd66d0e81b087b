"""Runs the node tests that take too long for every run: `scripts/test --all` leaves them out.

Their files run whole, as the tests of a file build on each other.

scripts/campaign slow [PYTEST ARGUMENT]...
"""

from __future__ import annotations

import sys

import pytest

from tests import ROOT


def main() -> int:
    """Run the files with slow node tests, two at a time; return pytest's exit code."""
    how = ["--numprocesses=2", "--dist=loadfile", "--no-loadscope-reorder", "--timeout=2400"]
    how += ["-p", "tests.selection", "--slow-files"]
    return int(pytest.main([*how, "--durations=20", *(sys.argv[1:] or [str(ROOT / "tests/lab")])]))


if __name__ == "__main__":
    sys.exit(main())
