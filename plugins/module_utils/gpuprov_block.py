# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A marked block at the top of a file whose other lines belong to others.

For programs that take the first of several values and have no folder for files of their own. It is edited as
in `gpuprov_lines`. Runs on nodes: Python 3.6 to 3.14 and its standard library.
"""

import re

from gpuprov_lines import edit, lines_of
from gpuprov_place import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprov_replace import Owner

BEGIN, END = b"# BEGIN gpuprov", b"# END gpuprov"
REPLACED = b"# replaced by gpuprov: "
"""Beginning of a line of others that must have no effect."""


class Block:
    """The block of one file.

    Args:
        path: path of the file.
        content: lines of the block; without any it is removed.
        replaces: lines of others that match this expression at their beginning are commented out, for good.
    """

    def __init__(self, path: str, content: bytes, replaces: "str | None" = None) -> None:
        self._path = path
        self._lines = lines_of(content)
        self._replaces = re.compile(replaces.encode()) if replaces else None
        self._former = []  # type: list[bytes]

    def within(self, content: bytes) -> bytes:
        """Return the content of the file with this block in place of the one in it; raises as `put`."""
        return b"".join(line + b"\n" for line in self._change(lines_of(content)))

    def put(self, mode: int, owner: "Owner") -> bool:
        """Write the block into its file; return whether the file changed.

        Args:
            mode: mode of a new file; an existing file keeps its own.
            owner: owner of a new file, likewise.

        Raises:
            Refused: the block in the file has no end, or as `edit` of `gpuprov_lines`.
            OSError: the file cannot be read or written.
        """
        return edit(self._path, self._change, self._may_go, mode, owner)

    def _change(self, lines: "list[bytes]") -> "list[bytes]":
        """Return the lines of the file with the block; raises `Refused` if the former block is not whole."""
        marks = [number for number, line in enumerate(lines) if line in (BEGIN, END)]
        if [lines[number] for number in marks] not in ([], [BEGIN, END]):
            reason = "needs one line '{}' and one '{}' after it around gpuprov's lines, or none of both"
            raise Refused(self._path, reason.format(BEGIN.decode(), END.decode()))
        first, last = marks or (0, -1)
        self._former = lines[first : last + 1]
        others = lines[:first] + lines[last + 1 :]
        if not self._lines:
            return others
        others = [REPLACED + each if self._is_replaced(each) else each for each in others]
        return [BEGIN, *self._lines, END, *others]

    def _is_replaced(self, line: bytes) -> bool:
        """Return whether a line of others must have no effect."""
        return self._replaces is not None and self._replaces.match(line) is not None

    def _may_go(self, line: bytes) -> bool:
        """Return whether the edit may remove a line."""
        return line in self._former or self._is_replaced(line)
