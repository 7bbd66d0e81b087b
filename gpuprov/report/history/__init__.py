"""History: the results of every run in an embedded database, and changes between two runs."""

from gpuprov.report.history.changes import Change, changes, news
from gpuprov.report.history.record import Run
from gpuprov.report.history.store import History, keep

__all__ = ["Change", "History", "Run", "changes", "keep", "news"]
