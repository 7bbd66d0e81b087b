"""A command on a separate terminal in tmux: its screen, keys and size."""

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
        command: its command line, run without a shell.
        width, height: size in characters.
        folder: working folder.
    """

    def __init__(self, command: list[str], width: int, height: int, folder: Path) -> None:
        """Start the command in a terminal of this size; end the program without tmux."""
        if shutil.which("tmux") is None:
            raise SystemExit("no tmux here: apt-get install tmux")
        self._server = f"gpuprov-{os.getpid()}"
        self._said = folder / "exit-code"
        size = ["-x", str(width), "-y", str(height)]
        # tmux does not always report a command's exit status.
        watched = ["sh", "-c", '"$@"; echo $? >"$0"; sleep 60', str(self._said), *command]
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "-c", str(folder), *watched)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill the command with its terminal."""
        self._tmux("kill-server")

    @property
    def pid(self) -> int:
        """Process id of the command."""
        shell = self._tmux("display-message", "-p", "#{pane_pid}")
        return int(Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])

    @property
    def ended(self) -> int | None:
        """Exit code in a shell's notation; None while the command runs."""
        result = self._said.read_text().strip() if self._said.exists() else ""
        return int(result) if result else None

    def text(self, *, colours: bool = False) -> str:
        """Return the screen line by line, with colour escapes if requested."""
        return self._tmux("capture-pane", "-p", *(["-e"] if colours else []))

    def press(self, *keys: str) -> None:
        """Press keys in tmux's names: `f`, `Down`, `PPage`."""
        self._tmux("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        """Change the size of the terminal."""
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def until(self, shown: Callable[[str], bool], seconds: float) -> float:
        """Return the seconds until the screen satisfies a condition.

        Raises:
            AssertionError: it did not within `seconds`.
        """
        begun = time.monotonic()
        while not shown(self.text()):
            if time.monotonic() - begun > seconds:
                raise AssertionError(f"not shown within {seconds:g} s:\n{self.text()}")
            time.sleep(0.1)
        return time.monotonic() - begun

    def _tmux(self, *words: str) -> str:
        """Run a command of tmux on the own server; return its output."""
        result = subprocess.run(
            ["tmux", "-L", self._server, *words], check=True, capture_output=True, text=True
        )
        return result.stdout.rstrip("\n")


def processor_seconds(pid: int) -> float:
    """Return the processor seconds of a process and its threads so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def picture(ansi: str, width: int, title: str, path: Path) -> None:
    """Write a terminal's text with its colours as an SVG file."""
    from io import StringIO

    from rich.console import Console
    from rich.text import Text

    console = Console(width=width, record=True, file=StringIO(), force_terminal=True, legacy_windows=False)
    for line in ansi.splitlines():
        console.print(Text.from_ansi(line), no_wrap=True, overflow="crop")
    # Its font would be loaded from a remote server; the reader's own font is enough.
    path.write_text(re.sub(r"\s*@font-face \{.*?\}", "", console.export_svg(title=title), flags=re.S) + "\n")
