"""The catalog, for the few faults whose rule or remedy needs it.

It is imported at its first use: it takes longer than all rules of a healthy machine.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuprov.catalog import Catalog


@cache
def catalog(release: Path | None = None) -> Catalog:
    """Return the newest catalog on this machine.

    Args:
        release: the folder of the release to take, instead of the newest.

    Raises:
        InvalidInput: a file of it is not valid.
        Refused: the newest release was modified.
    """
    from gpuprov.catalog import load

    return load(release=release)
