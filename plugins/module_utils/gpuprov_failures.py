# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Failures of package managers, and the messages that explain them.

Runs on nodes: Python 3.6 to 3.13 and its standard library.
"""

import re
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST = 300  # characters of a program's output in a message


class Cause(NamedTuple):
    """A cause of a failure: a pattern of the program's output, an explanation, a remedy."""

    match: str
    says: str
    do: str


class Failed(Exception):
    """Failure of a program; the text is its error message.

    Args:
        said: the error message.
        status: exit status of the program.
        stderr: its complete standard error.
    """

    def __init__(self, said: str, status: int = 1, stderr: str = "") -> None:
        super().__init__(said)
        self.status, self.stderr = status, stderr


def explained(what: str, error: Failed, causes: "Iterable[Cause]") -> "dict[str, str | None]":
    """Return the message for the user: `says` has the failed action `what` and the cause, `do` the remedy.

    The first cause whose pattern is found in the program's message explains it, and the message follows in
    parentheses, shortened. Without one `says` has that message, and `do` is null.
    """
    said = str(error)
    for cause in causes:
        if re.search(cause.match, said):
            return {"says": f"{what}: {cause.says} ({_shortened(said)})", "do": cause.do}
    return {"says": f"{what}: {said}", "do": None}


def _shortened(said: str) -> str:
    """Return a text with at most `LONGEST` characters; a longer one is cut at a space and ends with `...`."""
    return said if len(said) <= LONGEST else said[: LONGEST - 3].rpartition(" ")[0] + "..."
