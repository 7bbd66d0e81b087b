"""Discovery: the nearest profile of each live host, and the differences from it."""

from __future__ import annotations

from gpuprov.inventory.discover.here import fleet_here, fleet_of
from gpuprov.inventory.discover.match import Kind, Match, kinds, match
from gpuprov.inventory.discover.propose import Identity, names_of, propose
from gpuprov.inventory.discover.reach import match_hosts, within

__all__ = [
    "Identity",
    "Kind",
    "Match",
    "fleet_here",
    "fleet_of",
    "kinds",
    "match",
    "match_hosts",
    "names_of",
    "propose",
    "within",
]
