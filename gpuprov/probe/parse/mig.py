"""Parser of GPU instances, from the table of `nvidia-smi mig -lgi`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping


def parse_mig(text: str) -> Mapping[int, tuple[str, ...]]:
    """Parse rows such as `|   0  MIG 1g.5gb          19        7          0:1     |` to GPU → profiles,
    sorted.
    """
    found: defaultdict[int, list[str]] = defaultdict(list)
    for index, profile in re.findall(r"^\|\s+(\d+)\s+MIG (\S+)", text, re.MULTILINE):
        found[int(index)].append(profile)
    return {index: tuple(sorted(profiles)) for index, profiles in found.items()}
