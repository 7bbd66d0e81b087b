"""Imports for the nodes' answers, made while the nodes are under way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module


def importing(*modules: str) -> Callable[[], None]:
    """Return a function that imports modules of gpuprov, stated without `gpuprov.`."""
    return partial(_import, modules)


def _import(modules: tuple[str, ...]) -> None:
    """Import modules of gpuprov."""
    for module in modules:
        import_module(f"gpuprov.{module}")
