"""Compares the rates that `gpuprov accept` measured with those of PyTorch on the same machine.

    gpuprov accept --local -o json > accept.json
    scripts/bench pytorch accept.json --python PYTHON     # an interpreter with PyTorch
    scripts/bench pytorch accept.json --rates rates.json  # rates that it printed before, see --keep

Each ratio of medians must be between 0.95 and 1.05. Prints each measurement over all GPUs, then what misses.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench._bars import Bar, verdict

RATES = Path(__file__).with_name("_pytorch_rates.py")
LEAST, MOST = 0.95, 1.05
NOT_COMPARED = {"memory_read": "a sum in PyTorch"}
"""Measurements whose ratio has no limit, with what PyTorch does in their place."""


def main() -> int:
    """Measure with PyTorch, unless its rates are given; print the ratios."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("accepted", type=Path, nargs="+", help="output of `gpuprov accept -o json`")
    arguments.add_argument("--python", default="python3", help="interpreter that has PyTorch")
    arguments.add_argument("--rates", type=Path, help="rates that PyTorch reached before")
    arguments.add_argument("--keep", type=Path, help="write PyTorch's rates to this file")
    options = arguments.parse_args()
    runs = [json.loads(path.read_text()) for path in options.accepted]
    ours = gathered(row for run in runs for node in run["nodes"] for row in node["rates"])
    if options.rates:
        text = options.rates.read_text()
    else:
        count = str(runs[0]["nodes"][0]["gpus"])
        text = subprocess.run(
            [options.python, str(RATES), count], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
    if options.keep:
        options.keep.write_text(text)
    theirs = {name: list(rates.values()) for name, rates in json.loads(text)["rates"].items()}
    print(f"{'':<14}{'least':>9}{'median':>9}{'most':>9}{'PyTorch':>9}{'ratio':>7}")
    for name, values in ours.items():
        print(line(name, values, theirs.get(name)))
    return verdict(bars(ours, theirs))


def gathered(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return measurement -> its rates over all GPUs and runs."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        found[row["measure"]].append(row["value"])
    return found


def line(name: str, values: list[float], theirs: list[float] | None) -> str:
    """Return a row of the table; `-` for what PyTorch did not measure."""
    own = "".join(f"{value:>9.1f}" for value in (min(values), median(values), max(values)))
    if not theirs:
        return f"{name:<14}{own}{'-':>9}{'-':>7}"
    ratio = median(values) / median(theirs)
    remark = f"  {NOT_COMPARED[name]}" if name in NOT_COMPARED else ""
    return f"{name:<14}{own}{median(theirs):>9.1f}{ratio:>7.3f}{remark}"


def bars(ours: Mapping[str, list[float]], theirs: Mapping[str, list[float]]) -> list[Bar]:
    """Return the limits of the ratios of medians, of what both measured."""
    ratios = {
        name: median(values) / median(theirs[name])
        for name, values in ours.items()
        if theirs.get(name) and name not in NOT_COMPARED
    }
    return [
        bar
        for name, ratio in ratios.items()
        for bar in (Bar(name, ratio, least=LEAST), Bar(name, ratio, most=MOST))
    ]


if __name__ == "__main__":
    sys.exit(main())
