"""What every run saw of every node, kept in an embedded database, and what changed between two runs."""

from gpuprov.report.history.changes import Change, changes, news
from gpuprov.report.history.record import Run
from gpuprov.report.history.store import History, keep

__all__ = ["Change", "History", "Run", "changes", "keep", "news"]
