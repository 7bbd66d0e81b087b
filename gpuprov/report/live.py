"""An updated line at the bottom of a terminal; all other lines are printed above it.

Rich replaces `sys.stderr` while its line is shown, but click writes to the file below it. Therefore all lines
on standard error go through `print_above`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

REFRESHES_PER_SECOND = 4
_shown: list[Console] = []
"""Consoles with an updated line, the innermost last."""


@contextmanager
def live_line(line: Callable[[], str]) -> Iterator[None]:
    """Show the result of `line` on one row of standard error until the block ends.

    Nothing is shown without a terminal. A text that is wider than the terminal is cut, so that the row never
    wraps.
    """
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def row() -> Text:
        return Text(line(), no_wrap=True, overflow="ellipsis")

    console = Console(stderr=True, highlight=False, markup=False)
    with Live(get_renderable=row, console=console, transient=True, refresh_per_second=REFRESHES_PER_SECOND):
        _shown.append(console)
        try:
            yield
        finally:
            _shown.remove(console)


def print_above(text: str) -> bool:
    """Print text above the updated line, with a newline unless it has one; return False without one, and
    nothing was printed.
    """
    if not _shown:
        return False
    from rich.text import Text

    _shown[-1].print(Text(text), soft_wrap=True, end="" if text.endswith("\n") else "\n")
    return True
