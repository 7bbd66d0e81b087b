"""Who listens: `ss --listening --tcp --numeric --processes --no-header`."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PROCESS = re.compile(r'"([^"]+)",pid=')


def parse_listening(text: str) -> Mapping[str, tuple[int, ...]]:
    """Program → TCP ports that it listens on, in order; "" for those whose program `ss` does not name."""
    found: dict[str, set[int]] = {}
    for line in text.splitlines():
        words = line.split(None, 5)
        if len(words) < 5:
            continue
        port = words[3].rpartition(":")[2]
        for program in _PROCESS.findall(words[5] if len(words) > 5 else "") or [""]:
            found.setdefault(program, set()).add(int(port))
    return {program: tuple(sorted(ports)) for program, ports in found.items()}
