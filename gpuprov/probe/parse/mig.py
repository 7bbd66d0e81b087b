"""Parser of GPU instances, from the table of `nvidia-smi mig -lgi`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from gpuprov.untrusted import lines_of

_ROW = re.compile(r"\|\s+(\d{1,9})\s+MIG (\S+)")


def parse_mig(text: str) -> Mapping[int, tuple[str, ...]]:
    """Parse rows such as `|   0  MIG 1g.5gb          19        7          0:1     |` to GPU → profiles,
    sorted.
    """
    found: defaultdict[int, list[str]] = defaultdict(list)
    for row in filter(None, map(_ROW.match, lines_of(text))):
        found[int(row[1])].append(row[2])
    return {index: tuple(sorted(profiles)) for index, profiles in found.items()}
