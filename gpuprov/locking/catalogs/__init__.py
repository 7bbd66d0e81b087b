"""Maintenance of the catalog: signed releases, updates, outdated facts, and contradictions by indexes."""
