"""The only place where any exception during work on a node becomes the failure of that node.

A node's answer, or the way in which its connection breaks, may cause unforeseen exceptions; the answers of
other nodes must not be lost because of them. The cause may also be a bug in gpuprov, so a log keeps the
traceback.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TypeVar

from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.files.runs import state_dir
from gpuprov.files.writing import make_folders
from gpuprov.untrusted import LogFormatter, on_one_line

T = TypeVar("T")
LOG_BYTES = 1024 * 1024
"""Maximum size of the log; one older log is kept. A node that keeps sending garbage cannot fill the disk."""


def contained(node: str, work: Callable[[], T]) -> T | GpuprovError:
    """Return the result of `work` on a node, or the error that ended it.

    A `GpuprovError` is returned without its traceback, which would keep the node's answer in memory; any
    other exception is returned as `unexpected` describes it.
    """
    try:
        return work()
    except GpuprovError as error:
        error.__context__ = error.__cause__ = None
        return error.with_traceback(None)
    except Exception as error:  # noqa: BLE001
        return unexpected(node, error)


def unexpected(node: str, error: Exception) -> NodeFailed:
    """Return the failure of a node after an unforeseen exception, and log the traceback.

    If the log cannot be written, the failure does not name it.
    """
    seen = f"what it sent could not be read ({type(error).__name__})"
    if isinstance(error, OSError):
        seen = f"the request failed, or its answer could not be stored: {on_one_line(str(error))}"
    try:
        path = state_dir() / "unexpected.log"
        _keep(path, node, error)
    except (OSError, GpuprovError):  # neither a full disk nor a refused folder loses other nodes' answers
        return NodeFailed(seen)
    return NodeFailed(seen, do=f"the traceback is in {path}: check its Python and login shell, or report it")


def _keep(path: Path, node: str, error: Exception) -> None:
    """Append a traceback to the log, which only its owner can read and which `LOG_BYTES` limit.

    Raises:
        OSError: it or its folder cannot be written.
    """
    made = logging.LogRecord(
        "gpuprov", logging.ERROR, "", 0, "%s", (node,), (type(error), error, error.__traceback__)
    )
    with _ONE_AT_A_TIME:
        make_folders(path.parent)
        path.touch(mode=0o600)
        handler = _Log(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8", errors="backslashreplace")
        handler.setFormatter(LogFormatter("%(asctime)s %(message)s"))
        handler.emit(made)
        handler.close()


class _Log(RotatingFileHandler):
    """A log file whose errors are raised; the standard library would only print their traceback."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Raise the error that occurred when a record was written."""
        raise


_ONE_AT_A_TIME = threading.Lock()
