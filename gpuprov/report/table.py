"""Tables as lines of text, with correct cell widths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

WIDEST = 80
"""Maximum width of a column. Without it, a node's long text would widen the lines of all nodes."""


def aligned(rows: Iterable[Sequence[str]], *, indent: str = "") -> Iterator[str]:
    """Yield lines of a table: two spaces between columns, no trailing spaces.

    Wide characters (those of East Asia, emoji) take two columns, as on a terminal. A column is at most
    `WIDEST` wide; a longer cell is complete, and only its own line is not aligned after it. Lines are not
    folded: that is left to the reader, or to a program that splits them.
    """
    # Rich's own tables take a second for a fleet's thousands of lines; only its widths are needed.
    from rich.cells import cell_len

    listed = [[(cell, min(WIDEST, cell_len(cell[:WIDEST]))) for cell in row] for row in rows]
    widths = [max(width for _, width in column) for column in zip(*listed, strict=True)]
    for row in listed:
        padded = (cell + " " * (most - width) for (cell, width), most in zip(row, widths, strict=True))
        yield (indent + "  ".join(padded)).rstrip()
