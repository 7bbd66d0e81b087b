# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Editing of lines in a file that other programs also write: their lines are never lost.

The file is replaced as in `gpuprov_replace`. A read error is an error, never an empty file. A file that
another program changes between our reading and our writing is read again.

Runs on nodes and on the controller: Python 3.6 to 3.14 and its standard library, Linux and macOS.
"""

from gpuprov_place import Changed, Place, Refused
from gpuprov_replace import TemporaryReplacement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuprov_replace import Owner

    Change = Callable[[list[bytes]], list[bytes]]
    Judge = Callable[[bytes], bool]

TRIES = 5
"""Number of attempts to edit a file that other programs change."""


def edit_lines(
    path: str,
    is_ours: "Judge",
    add: "Iterable[bytes]" = (),
    mode: int = 0o600,
    owner: "Owner | None" = None,
) -> bool:
    """Remove the lines that are ours and append others; return whether the file changed.

    A link at the path is kept. A missing file is created, its folder is not. Lines are passed and compared
    without the newline.

    Args:
        is_ours: whether a line is ours; it must match no line of other programs.
        add: lines to append, in this order; an own line that stays must be among them.
        mode: mode of a new file; an existing file keeps its own.
        owner: owner of a new file; an existing file keeps its own.

    Raises:
        Refused: lines of others would be lost, or the file changes faster than it can be edited.
        OSError: the edit failed; the old file is unchanged.
    """
    added = list(add)

    def change(lines: "list[bytes]") -> "list[bytes]":
        return [line for line in lines if not is_ours(line)] + added

    return edit(path, change, is_ours, mode, owner)


def edit(
    path: str, change: "Change", is_ours: "Judge", mode: int = 0o600, owner: "Owner | None" = None
) -> bool:
    """Edit the lines of a file by `change`, under the rules of `edit_lines`; return whether the file changed.

    Args:
        change: returns the new lines; it is called again if another program changed the file meanwhile.
        is_ours: whether `change` may remove a line.

    Raises:
        Refused: another program changed the file during each of `TRIES` attempts, or as `edit_lines`.
    """
    for _try in range(TRIES):
        try:
            return _edit(path, change, is_ours, mode, owner)
        except Changed:
            pass
    raise Refused(path, f"was changed by another program during each of {TRIES} attempts")


def _edit(path: str, change: "Change", is_ours: "Judge", mode: int, owner: "Owner | None") -> bool:
    """Edit the lines of a file once; return whether the file changed.

    Raises:
        Changed: another program changed the file meanwhile.
        Refused: `change` would remove lines of others.
    """
    with Place(path, follow=True) as place:
        old = place.read()
        before = lines_of(old.content)
        after = change(list(before))
        refuse_loss(path, before, after, is_ours)
        if after == before:
            return False
        content = b"".join(line + b"\n" for line in after)
        new = old.about is None
        with TemporaryReplacement(
            place, content, mode if new else None, owner if new else None, old=old
        ) as half:
            refuse_loss(path, before, lines_of(half.written()), is_ours)
            half.put()
        return True


def lines_of(content: bytes) -> "list[bytes]":
    """Return the lines of a file without their newlines.

    The last line may have none. Empty for an empty file.
    """
    lines = content.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def refuse_loss(path: str, before: "list[bytes]", after: "list[bytes]", is_ours: "Judge") -> None:
    """Check that every line that is not ours is still there, in the same order.

    Raises:
        Refused: a line is missing; the message has the number of lines before and after.
    """
    rest = iter(after)
    if not all(line in rest for line in before if not is_ours(line)):
        reason = "the edit would lose lines that are not gpuprov's: {} lines now, {} afterwards"
        raise Refused(path, reason.format(len(before), len(after)))
