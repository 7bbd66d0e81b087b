"""Keeping the catalog true: signed releases made and brought, what is stale, what indexes say against it."""
