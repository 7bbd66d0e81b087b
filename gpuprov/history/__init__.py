"""History: the results of every run in an embedded database, and changes between two runs."""

from gpuprov.history.changes import Change, changes, news
from gpuprov.history.record import Run
from gpuprov.history.store import History, keep

__all__ = ["Change", "History", "Run", "changes", "keep", "news"]
