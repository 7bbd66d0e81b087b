"""Parsers of GPU instances: the table of `nvidia-smi mig -lgi`, and the driver's files about device nodes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from gpuprov.untrusted import lines_of

MOST = 1024
"""Maximum number of instances of a node: gres.conf(5) allows no more devices."""
COMPUTE = 8
"""Maximum number of compute instances in a GPU instance, one for each of its slices."""
_ROW = re.compile(r"\|\s+(\d{1,9})\s+MIG (\S+)(?:\s+\d{1,9}\s+(\d{1,9})\s)?")
_ACCESS = re.compile(r"/proc/driver/nvidia/capabilities/gpu(\d{1,4})/mig/gi(\d{1,4})/(?:ci(\d{1,4})/)?access")
_MINOR = re.compile(r"^DeviceFileMinor:\s*(\d{1,7})$", re.M)


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One GPU instance.

    Attributes:
        gpu: minor number of its GPU, N in /dev/nvidiaN.
        profile: its name, `3g.40gb`.
        capability: N in /dev/nvidia-caps/nvidia-capN of the instance; None if the driver lists none.
        compute: the same of its compute instances, by their number.
    """

    gpu: int
    profile: str
    capability: int | None
    compute: tuple[int, ...]


def parse_mig(text: str) -> Mapping[int, tuple[str, ...]]:
    """Parse rows such as `|   0  MIG 1g.5gb          19        7          0:1     |` to GPU → profiles,
    sorted.
    """
    found: defaultdict[int, list[str]] = defaultdict(list)
    for row in filter(None, map(_ROW.match, lines_of(text))):
        found[int(row[1])].append(row[2])
    return {index: tuple(sorted(profiles)) for index, profiles in found.items()}


def parse_mig_instances(
    text: str, capabilities: Mapping[str, str | None], minors: Mapping[int, int]
) -> tuple[MigInstance, ...]:
    """Parse the same table to instances with their device files, ordered by GPU and number; at most `MOST`.

    Args:
        capabilities: file below /proc/driver/nvidia/capabilities → its text, `DeviceFileMinor: 21`.
        minors: index of a GPU in nvidia-smi → its minor number, by which these files name it.
    """
    files: dict[tuple[int, int, int], int] = {}
    for path, said in capabilities.items():
        place, minor = _ACCESS.fullmatch(path), _MINOR.search(said or "")
        if place and minor:
            files[int(place[1]), int(place[2]), int(place[3] or -1)] = int(minor[1])
    found = []
    for row in filter(None, map(_ROW.match, lines_of(text))):
        gpu, number = minors.get(int(row[1]), int(row[1])), int(row[3] or -1)
        compute = [key for key in ((gpu, number, each) for each in range(COMPUTE)) if key in files]
        instance = MigInstance(
            gpu, row[2], files.get((gpu, number, -1)), tuple(files[key] for key in compute)
        )
        found.append((gpu, number, instance))
    return tuple(instance for *_, instance in sorted(found, key=lambda each: each[:2])[:MOST])
