"""Parameters of node tests; some are slow."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_ones(values: Iterable[Any], slow: Collection[Any]) -> list[Any]:
    """Return the values for `parametrize`; those of `slow` have the mark of that name.

    Args:
        values: a value of each case, or a tuple for several parameters.
    """
    return [_parameter(value, slow=value in slow) for value in values]


def _parameter(value: Any, *, slow: bool) -> Any:
    """Return a parameter of a test, marked as slow if it is."""
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=[pytest.mark.slow] if slow else [])
