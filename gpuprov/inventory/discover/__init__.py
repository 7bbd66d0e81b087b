"""What live hosts are: each matched with the nearest profile, and what it has less than that."""

from __future__ import annotations

from gpuprov.inventory.discover.match import Kind, Match, kinds, match
from gpuprov.inventory.discover.propose import propose
from gpuprov.inventory.discover.reach import look, within

__all__ = ["Kind", "Match", "kinds", "look", "match", "propose", "within"]
