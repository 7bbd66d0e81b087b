"""Imports for the nodes' answers, made while the nodes are under way."""

from __future__ import annotations

from importlib import import_module


def import_ahead(*modules: str) -> None:
    """Import modules of gpuprov, stated without `gpuprov.`."""
    for module in modules:
        import_module(f"gpuprov.{module}")
