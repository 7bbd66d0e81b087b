"""Whatever a node does is that node's line: the one place where any exception becomes its failure.

What a node sends, or how it breaks off, may lead to exceptions that no one thought of; the answers of other
nodes are not lost for it. Such an exception may as well be a mistake of ours: a log keeps its traceback.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TypeVar

from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.runs import state_dir
from gpuprov.untrusted import LogFormatter, on_one_line

T = TypeVar("T")
LOG_BYTES = 1024 * 1024
"""A node that sends nonsense all day fills no disk: a log of this size, and the one before it."""


def contained(node: str, work: Callable[[], T]) -> T | GpuprovError:
    """What `work` on a node returns, or why it failed there; an error of ours comes back as it is."""
    try:
        return work()
    except GpuprovError as error:
        return error
    except Exception as error:  # noqa: BLE001
        return unexpected(node, error)


def unexpected(node: str, error: Exception) -> NodeFailed:
    """The failure of a node that ended in an exception no one thought of; its traceback goes into the log."""
    path = state_dir() / "unexpected.log"
    seen = f"what it sent could not be read ({type(error).__name__})"
    if isinstance(error, OSError):
        seen = f"not asked, or its answer not kept: {on_one_line(str(error))}"
    failure = NodeFailed(
        seen,
        do=f"the traceback is in {path}: check its Python and login shell, or report it",
    )
    try:
        _keep(path, node, error)
    except OSError:  # a full disk here is no reason to lose the answers of other nodes
        failure.do = ""
    return failure


def _keep(path: Path, node: str, error: Exception) -> None:
    """Add a traceback to the log, which is for its owner alone."""
    made = logging.LogRecord(
        "gpuprov", logging.ERROR, "", 0, "%s", (node,), (type(error), error, error.__traceback__)
    )
    with _ONE_AT_A_TIME:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        handler = _Log(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8", errors="backslashreplace")
        handler.setFormatter(LogFormatter("%(asctime)s %(message)s"))
        handler.emit(made)
        handler.close()


class _Log(RotatingFileHandler):
    """A log whose faults are raised; the standard library prints a traceback of them."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Raise what went wrong while a line was written."""
        raise


_ONE_AT_A_TIME = threading.Lock()
