"""Records the verbs that need a node on terminals of 80 and 140 columns, and replays them in an emulator.

    scripts/campaign screens [--width 80]... [--folder DIR]

Each width has a lab node of its own. A line must not be torn by the terminal or garbled by a live view, and a
view of the whole screen must fit into it. The recordings are left in DIR; `cat` shows them. Exit 1 after a
complaint. The verbs that need no node are in tests/unit/cli/test_screens.py.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.screens import Screen, record


@dataclass(frozen=True)
class Line:
    """A command line.

    Attributes:
        keys: what is typed, each after a number of seconds since the last.
        whole: whether it draws on the whole screen.
        document: whether lines of files are part of its output, which are not folded.
        code: exit code; None for any.
    """

    text: str
    keys: tuple[tuple[float, str], ...] = ()
    whole: bool = False
    document: bool = False
    code: int | None = 0


LINES = (
    Line("lab up --nodes 1 --gpu h200x4 --name {lab} --fleet fleet.yml --profile hgx-h200-4 --mirror"),
    Line("lab list"),
    Line("validate"),
    Line("lock"),
    Line("plan", code=3),
    Line("apply --check --diff", document=True),
    Line("apply --reboot", keys=((8, "n\n"),), code=130),
    Line("apply --reboot --yes"),
    Line("verify"),
    Line("drift"),
    Line("lab ssh --name {lab} node1 'nvidia-smi -pm 0'", document=True, code=None),
    Line("drift", code=None),
    Line("plan", code=None),
    Line("apply --yes"),
    Line("apply --full --yes"),
    Line("facts node1"),
    Line("doctor node1", code=None),
    Line("doctor node1 --load 2", code=None),
    Line("status"),
    Line("status --overview", code=None),
    Line("status --watch 1", keys=((4, "f"), (2, "o"), (2, "q")), whole=True),
    Line("topo node1"),
    Line("nccl derive node1", code=None),
    Line("nccl check node1", code=None),
    Line("accept node1", code=None),
    Line("upgrade --to fleet.lock.yml --plan", code=None),
    Line("rollback", code=None),
    Line("repair --plan", code=None),
    Line("history"),
    Line("history node1"),
    Line("report latest"),
    Line("bootstrap", code=None),
    Line("inventory discover node1", code=None),
    Line("lab reboot --name {lab} node1"),
    Line("lab down --name {lab}"),
)


def main() -> int:
    """Record the lines at each width, and print what is complained about; return 1 if there is something."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, action="append")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "gpuprov-screens"))
    stated = parser.parse_args()
    bad = 0
    for width in stated.width or (80, 140):
        folder = stated.folder / str(width)
        folder.mkdir(parents=True)
        bad += recorded(folder, width)
    return 1 if bad else 0


def recorded(folder: Path, width: int) -> int:
    """Record all lines in a new folder; return the number of those with a complaint or another exit code."""
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**kept, "PATH": path, "XDG_STATE_HOME": str(folder / "state")}
    bad = 0
    for number, line in enumerate(LINES):
        words = shlex.split(line.text.format(lab=f"screens{width}"))
        screen = record(["gpuprov", *words], width, folder=folder, environment=environment, keys=line.keys)
        (folder / f"{number:02} {words[0]}.screen").write_bytes(screen.written)
        found = complaints(line, screen)
        bad += bool(found)
        print(
            f"{width:>4}  {'bad' if found else 'ok ':<4} {screen.code:>4}  gpuprov {' '.join(words)}",
            flush=True,
        )
        for complaint in found:
            print(f"      {complaint!r}", flush=True)
    return bad


def complaints(line: Line, screen: Screen) -> list[str]:
    """Return what is wrong with a recording."""
    seen = (
        [f"too wide: {each}" for each in screen.too_wide()]
        if line.whole
        else screen.complaints(document=line.document)
    )
    unexpected = line.code is not None and screen.code != line.code
    return [*seen, *([f"exit code {screen.code}, not {line.code}"] if unexpected else [])]


if __name__ == "__main__":
    sys.exit(main())
