"""A command on a terminal of its own, by tmux: what it shows, keys, another size."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self


class Terminal:
    """One command that runs on a terminal.

    Args:
        command: its command line, run without a shell between.
        width, height: in characters.
        folder: where it runs.
    """

    def __init__(self, command: list[str], width: int, height: int, folder: Path) -> None:
        if shutil.which("tmux") is None:
            raise SystemExit("no tmux here: apt-get install tmux")
        self._server = f"gpuprov-{os.getpid()}"
        self._said = folder / "exit-code"
        size = ["-x", str(width), "-y", str(height)]
        # tmux does not always tell how a command ended.
        watched = ["sh", "-c", '"$@"; echo $? >"$0"; sleep 60', str(self._said), *command]
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "-c", str(folder), *watched)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the command with its terminal."""
        self._tmux("kill-server")

    @property
    def pid(self) -> int:
        """The command's process."""
        shell = self._tmux("display-message", "-p", "#{pane_pid}")
        return int(Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])

    @property
    def ended(self) -> int | None:
        """Its exit code, as a shell tells it; None while it runs."""
        told = self._said.read_text().strip() if self._said.exists() else ""
        return int(told) if told else None

    def text(self, *, colours: bool = False) -> str:
        """What it shows now, line by line; with the escapes of colours where asked for."""
        return self._tmux("capture-pane", "-p", *(["-e"] if colours else []))

    def press(self, *keys: str) -> None:
        """Keys by tmux's names: `f`, `Down`, `PPage`."""
        self._tmux("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        """Another size."""
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def until(self, shown: Callable[[str], bool], seconds: float) -> float:
        """Seconds until the text is so.

        Raises:
            AssertionError: it was not, in that time.
        """
        begun = time.monotonic()
        while not shown(self.text()):
            if time.monotonic() - begun > seconds:
                raise AssertionError(f"not shown within {seconds:g} s:\n{self.text()}")
            time.sleep(0.1)
        return time.monotonic() - begun

    def _tmux(self, *words: str) -> str:
        told = subprocess.run(
            ["tmux", "-L", self._server, *words], check=True, capture_output=True, text=True
        )
        return told.stdout.rstrip("\n")


def processor_seconds(pid: int) -> float:
    """Processor time of a process and its threads, so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def picture(ansi: str, width: int, title: str, path: Path) -> None:
    """A terminal's text with its colours as an SVG file."""
    from io import StringIO

    from rich.console import Console
    from rich.text import Text

    console = Console(width=width, record=True, file=StringIO(), force_terminal=True, legacy_windows=False)
    for line in ansi.splitlines():
        console.print(Text.from_ansi(line), no_wrap=True, overflow="crop")
    # Its font would come from elsewhere; the reader's own will do.
    path.write_text(re.sub(r"\s*@font-face \{.*?\}", "", console.export_svg(title=title), flags=re.S) + "\n")
