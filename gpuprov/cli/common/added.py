"""Verbs that other distributions of this project add: the installed ones, for `gpuprov --help`.

importlib.metadata takes longer to import than the overview may take. So the distribution's metadata is read
from its folder here; `gpuprov.cli.common.group` reads the entry point of a verb when the verb is called.
"""

from __future__ import annotations

import sys

from gpuprov import __version__
from gpuprov.cli.common.verbs import ADDED


def summaries() -> dict[str, str]:
    """Return verb → summary of its distribution, for verbs of `ADDED` installed in gpuprov's version."""
    found = {verb: _summary(name) for verb, name in ADDED.items()}
    return {verb: line for verb, line in found.items() if line}


def _summary(distribution: str) -> str:
    """Return the summary in a distribution's metadata; "" if it is not installed in gpuprov's version."""
    metadata = f"{distribution.replace('-', '_')}-{__version__}.dist-info/METADATA"
    for folder in sys.path:
        try:
            with open(f"{folder or '.'}/{metadata}", encoding="utf-8") as file:  # noqa: PTH123 - pathlib too
                lines = [line for line in file if line.startswith("Summary: ")]
        except (OSError, ValueError):
            continue
        if lines:
            return lines[0].partition(": ")[2].strip()
    return ""
