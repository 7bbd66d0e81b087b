"""The updated line on a real terminal of several widths: no line above it is torn, and it leaves no rest."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios

import pyte
import pytest

from gpuprov.cli.common.terminal import folded
from gpuprov.report.live import live_line, print_above
from tests import ROOT

LONG = (
    "Install the driver, its headers and the compiler of the target kernel, in one transaction of the manager"
)
PROGRAM = f"""
import time
from gpuprov.cli.common import options
from gpuprov.report.progress import VERIFY, Progress

progress = Progress(options.note, steps={{"nvidia_driver": ["gpu1"], "docker": ["gpu1"], VERIFY: ["gpu1"]}})
with progress.alive():
    for role, task in (("nvidia_driver", "{LONG}"), ("packages", "Install them"), ("docker", "Start it")):
        progress.event({{"event": "start", "play": "site", "role": role, "task": task}})
        time.sleep(0.4)
        options.note(f"noted in {{role}}")
        result = {{"event": "task", "host": "gpu1", "role": role, "task": task}}
        progress.event(result | {{"status": "changed", "seconds": 1}})
    progress.event({{"event": "stats", "hosts": {{}}}})
with progress.alive(VERIFY):
    time.sleep(0.4)
options.note("done")
"""
EXPECTED = [
    "nvidia_driver … (1 of 3)",
    "noted in nvidia_driver",
    f"    gpu1  changed  {LONG}",
    "noted in packages",
    "    gpu1  changed  Install them",
    "docker … (2 of 3)",
    "noted in docker",
    "    gpu1  changed  Start it",
    "done",
]


def shown(program: str, width: int) -> tuple[list[str], str]:
    """Return the lines of a program's terminal at its end, wrapped ones joined, and all that it wrote."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
        # readline adds COLUMNS to the environment of its process, and so to that of processes below it.
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        environment = {**kept, "TERM": "xterm"}
        os.execve(sys.executable, [sys.executable, "-c", program], environment)  # noqa: S606
    written = b""
    while True:
        try:
            written += os.read(terminal, 65536)
        except OSError:  # end of file: a pseudo-terminal reports it as an error
            break
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, written.decode()
    os.close(terminal)
    screen = pyte.Screen(width, 40)
    pyte.ByteStream(screen).feed(written)
    text = "".join(line if len(line.rstrip()) == width else f"{line.rstrip()}\n" for line in screen.display)
    return text.rstrip("\n").splitlines(), written.decode()


@pytest.mark.parametrize("width", [80, 140])
def test_no_line_is_torn_and_no_rest_is_left(width: int) -> None:
    lines, written = shown(PROGRAM, width)
    assert lines == [part for line in EXPECTED for part in folded(line, width)]
    assert re.search(r"1 of 3 after 0:0\d  nvidia_driver on gpu1: Install the driver", written)
    assert re.search(r"3 of 3 after 0:0\d  verify on gpu1, 0:0\d", written)


def test_nothing_is_shown_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with live_line(lambda: pytest.fail("asked")):
        assert not print_above("text")
    assert capsys.readouterr() == ("", "")
