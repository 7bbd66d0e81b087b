"""Parser of the effective configuration that `sshd -T` prints."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache


@lru_cache(maxsize=256)
def parse_sshd(text: str) -> Mapping[str, tuple[str, ...]]:
    """Parse keyword in lower case → its values in order; a keyword that
    may repeat (`hostkey`) has several.
    """
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        if name:
            found.setdefault(name.lower(), []).append(value.strip())
    return {name: tuple(values) for name, values in found.items()}
