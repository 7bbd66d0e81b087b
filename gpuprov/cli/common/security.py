"""Notes of several verbs about versions that security bulletins concern."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from gpuprov.cli.common import options
from gpuprov.errors import GpuprovError

if TYPE_CHECKING:
    from gpuprov.drift.judge import NodeDrift
    from gpuprov.drift.security import SecurityNote
    from gpuprov.model.lock import Lock

SEE = "the next steps: gpuprov catalog check --security"


def notes_about(lock: Lock, nodes: Sequence[NodeDrift]) -> list[SecurityNote]:
    """Return the notes about nodes of a lock, by the newest bulletins on this machine; [] if the lock ignores
    them.

    A catalog that cannot be read is only a warning: bulletins are no part of the nodes' result.
    """
    from gpuprov.catalog import load
    from gpuprov.drift.security import security_notes

    if lock.security == "ignore":
        return []
    try:
        return list(security_notes(lock, nodes, load()))
    except GpuprovError as error:
        options.warn(f"nothing is known of security bulletins: {error}")
        return []


def read_ahead(lock: Lock) -> None:
    """Read the bulletins that `notes_about` uses; a failure is left to it."""
    from gpuprov.catalog import load

    if lock.security != "ignore":
        with suppress(GpuprovError):
            load()


def print_notes(notes: Sequence[SecurityNote]) -> None:
    """Print notes on stderr, nodes folded, and the command with the next steps."""
    from gpuprov.report.text import note_lines

    for line in note_lines(notes):
        options.note(line)
    if notes:
        options.note(SEE)
