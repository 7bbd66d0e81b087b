"""Parser of listening sockets: `ss --listening --tcp --numeric --processes --no-header`."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PROCESS = re.compile(r'"([^"]+)",pid=')


def parse_listening(text: str) -> Mapping[str, tuple[int, ...]]:
    """Parse sockets to program → its TCP ports, in order; "" for those without a program in the output of
    `ss`.
    """
    found: dict[str, set[int]] = {}
    for line in text.splitlines():
        words = line.split(None, 5)
        if len(words) < 5:
            continue
        port = words[3].rpartition(":")[2]
        for program in _PROCESS.findall(words[5] if len(words) > 5 else "") or [""]:
            found.setdefault(program, set()).add(int(port))
    return {program: tuple(sorted(ports)) for program, ports in found.items()}
