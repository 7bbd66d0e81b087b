"""What happens on the nodes, as it happens, in lines for a person."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

SLOW_S = 10.0


class Progress:
    """Turns Ansible's events into lines: each task once, with what changed or failed below it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._task: tuple[str | None, str | None] = (None, None)

    def event(self, event: dict[str, Any]) -> None:
        """One event of the callback."""
        status = event.get("status")
        if status not in ("changed", "failed", "unreachable"):
            return
        task = (event.get("role"), event.get("task"))
        if task != self._task:
            self._task = task
            self._say("  ".join(filter(None, task)))
        seconds = float(event.get("seconds") or 0)
        took = f" ({seconds:.0f} s)" if seconds >= SLOW_S else ""
        said = "" if status == "changed" else f": {event.get('msg')}"
        self._say(f"    {event.get('host')} {status}{took}{said}")
        for line in _diff_lines(event.get("diff")):
            self._say(f"        {line}")


def _diff_lines(diff: Any) -> Iterable[str]:
    """Lines of a unified diff, of what a task says stood there before and after."""
    import difflib

    for each in diff if isinstance(diff, list) else [diff] if diff else []:
        if "prepared" in each:
            yield from str(each["prepared"]).splitlines()
        else:
            before, after = (str(each.get(side) or "").splitlines() for side in ("before", "after"))
            name = str(each.get("after_header") or each.get("before_header") or "")
            yield from difflib.unified_diff(before, after, name, name, lineterm="", n=1)
