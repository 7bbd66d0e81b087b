"""A run's results as files: the document, one line for shell scripts, metrics for Prometheus."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpuprov_place import Place
from gpuprov_replace import replace

from gpuprov.health.memory import DRAINING
from gpuprov.health.verdict import VERDICTS
from gpuprov.untrusted import on_one_line

LINE = 200
"""Maximum length of the text in the line."""
FAULTS = 100
"""Maximum number of faults that metrics list."""


def line(document: Mapping[str, Any]) -> str:
    """Return the verdict as one line of words for shell scripts.

        VERDICT BOOT_ID UPTIME VALID LIFT RULE TEXT…

    UPTIME and LIFT are whole seconds since boot: of the run, and from which on a drain may be lifted. VALID
    is the number of seconds for which the line holds. RULE is `-` without one. TEXT is cut to `LINE`
    characters.
    """
    text = on_one_line(str(document["text"]))[:LINE]
    number = [str(int(document[name])) for name in ("uptime_s", "valid_s", "lift_s")]
    words = [document["verdict"], document["boot_id"] or "-", *number, document["rule"] or "-", text]
    return " ".join(map(str, words)).rstrip() + "\n"


def metrics(document: Mapping[str, Any], wall: float) -> str:
    """Return the verdict in Prometheus' text format, with at most `FAULTS` faults.

    Args:
        wall: time of the run, in seconds since the epoch.
    """
    rows = [
        "# HELP gpuprov_health_verdict Verdict on this node: 1 for the one that holds.",
        "# TYPE gpuprov_health_verdict gauge",
        *(_verdict_row(each, holds=each == document["verdict"]) for each in VERDICTS),
        "# HELP gpuprov_health_fault Fault that counts, by rule of gpuprov doctor and class.",
        "# TYPE gpuprov_health_fault gauge",
        *(
            f'gpuprov_health_fault{{rule="{_label(each["rule"])}",class="{_label(each["health"])}"}} 1'
            for each in document["faults"][:FAULTS]
        ),
        "# HELP gpuprov_health_unjudged_rules Rules that could not judge.",
        "# TYPE gpuprov_health_unjudged_rules gauge",
        f"gpuprov_health_unjudged_rules {len(document['unjudged'])}",
        "# HELP gpuprov_health_run_seconds Duration of the run.",
        "# TYPE gpuprov_health_run_seconds gauge",
        f"gpuprov_health_run_seconds {document['seconds']}",
        "# HELP gpuprov_health_valid_seconds Time for which a verdict holds after its run.",
        "# TYPE gpuprov_health_valid_seconds gauge",
        f"gpuprov_health_valid_seconds {document['valid_s']}",
        "# HELP gpuprov_health_run_timestamp_seconds Time of the run, by the node's clock.",
        "# TYPE gpuprov_health_run_timestamp_seconds gauge",
        f"gpuprov_health_run_timestamp_seconds {int(wall)}",
    ]
    return "\n".join(rows) + "\n"


def _verdict_row(verdict: str, *, holds: bool) -> str:
    """Return the row of one verdict in the metrics."""
    return f'gpuprov_health_verdict{{verdict="{verdict}"}} {int(holds)}'


def _label(value: object) -> str:
    """Return a value for a label: names of rules and classes, in which other characters become `_`."""
    return "".join(each if each.isalnum() or each in "._-" else "_" for each in str(value)[:80])


def save(
    path: str,
    text: str,
    mode: int = 0o644,
    *,
    in_place: bool = False,
    keep: Callable[[str], bool] | None = None,
) -> None:
    """Replace a file in one step; if that fails, remove it, so that the old one is not taken for new.

    The folder of the metrics is another user's, so links in the path are followed as `gpuprov_place` states.

    Args:
        in_place: whether the old file is overwritten if it cannot be replaced. That needs no space if the
            text fits into its pages: a user can fill /run if a folder in it is everybody's, as screen's is.
        keep: returns whether the old file at a path stays if it cannot be replaced; None: it does not.

    Raises:
        OSError: it cannot be written.
    """
    try:
        replace(path, text.encode(), mode, (os.geteuid(), os.getegid()))
    except OSError:
        if in_place and _overwrite(path, text.encode()):
            return
        if not (keep and keep(path)):
            with contextlib.suppress(OSError):
                remove(path)
        raise


def _overwrite(path: str, content: bytes) -> bool:
    """Write into an existing file; return whether all could be written."""
    try:
        with Place(path) as place:
            file = os.open(place.name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place.folder)
        try:
            written = os.pwrite(file, content, 0)
            os.ftruncate(file, written)
            return written == len(content)
        finally:
            os.close(file)
    except OSError:
        return False


def remove(path: str) -> None:
    """Remove a file, or a link in its place.

    Raises:
        OSError: it is missing or cannot be removed, or the path leads through another user's link.
    """
    with Place(path) as place:
        os.unlink(place.name, dir_fd=place.folder)


def states_drain(path: str) -> bool:
    """Return whether metrics in a file state a verdict that drains the node, whose alert must not end with
    them; False if they cannot be read.
    """
    with contextlib.suppress(OSError), Place(path) as place:
        rows = place.read().content.decode(errors="replace").splitlines()
        return any(_verdict_row(each, holds=True) in rows for each in DRAINING)
    return False


def save_all(document: Mapping[str, Any], folder: str, textfile: str | None) -> dict[str, str]:
    """Write document, line and metrics; return path → reason for those that could not be written."""
    texts = {
        f"{folder}/health.json": json.dumps(document, indent=1, sort_keys=True) + "\n",
        f"{folder}/health": line(document),
    }
    if textfile:
        texts[textfile] = metrics(document, time.time())
    failed = {}
    for path, text in texts.items():
        try:
            of_textfile = path == textfile
            save(path, text, in_place=not of_textfile, keep=states_drain if of_textfile else None)
        except OSError as error:
            failed[path] = str(error.strerror or error)
    return failed
