"""What happens on the nodes, as it happens, in lines for a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SLOW_S = 10.0


class Progress:
    """Turns Ansible's events into lines: each role as it starts, each task that changed or failed."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._role: str | None = None

    def event(self, event: dict[str, Any]) -> None:
        """One event of the callback."""
        role = event.get("role")
        if role and role != self._role:
            self._role = role
            self._say(f"{role} …")
        status = event.get("status")
        if status not in ("changed", "failed", "unreachable"):
            return
        seconds = float(event.get("seconds") or 0)
        took = f" ({seconds:.0f} s)" if seconds >= SLOW_S else ""
        said = "" if status == "changed" else f": {event.get('msg')}"
        self._say(f"    {event.get('host')}  {status}  {event.get('task')}{took}{said}")
        for line in str(event.get("diff") or "").splitlines():
            self._say(f"        {line}")
