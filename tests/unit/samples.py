"""Samples of long tables of cases: the unit tests try a sample, `scripts/campaign cases` all cases."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from typing import TypeVar

Case = TypeVar("Case")

ALL = "GPUPROV_ALL_CASES"
"""Environment variable; if it is set, samples contain all cases."""


def sample(cases: Iterable[Case], share: int, name: str) -> list[Case]:
    """Return every `share`-th case, at least one, or all cases if `ALL` is set.

    The position of the first one follows from `name`, so that tests of different names try different cases.
    """
    every = list(cases)
    share = 1 if ALL in os.environ else min(share, len(every)) or 1
    return every[zlib.crc32(name.encode()) % share :: share]
