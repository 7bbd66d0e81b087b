"""Process for the tries of one way; each try and each reached goal is printed as a line of JSON.

    python -m tests.campaign._hostile.trial MODULE WAY FIRST COUNT SEED

MODULE has the way; importing all of them takes longer than most tries.
The parent (`tests.campaign.hostile`) kills it when a try takes longer than its limit.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import random
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.campaign._hostile.field import WAYS, Field, Reached, Way

MOST = 6 << 30
"""Limit of a process's address space in bytes; exceeding it is a MemoryError, which counts as a hang."""
RESET_PEAK = "5"
"""Value for /proc/PID/clear_refs (proc(5))."""


class Trial:
    """The tries of one way in this process."""

    def __init__(self, each: Way, field: Field, say: Callable[[dict[str, Any]], None]) -> None:
        self._way, self._field, self._say = each, field, say
        self._try = each.make(field)

    def run(self, first: int, count: int, seed: int) -> None:
        """Run `count` tries."""
        for number in range(first, first + count):
            self._say({"try": number})
            self._field.begin(number)
            before = _peak_mib(reset=True)
            rng = random.Random(f"{seed}:{self._way.key}:{number}")  # noqa: S311
            self._guarded(number, partial(self._try, rng))
            grown = _peak_mib() - before
            if grown > self._way.mib:
                self._reached(
                    number, "hang", f"{grown:.0f} MiB of memory more, expected at most {self._way.mib}"
                )
            self._look()
        self._say({"settle": True})
        if settle := getattr(self._try, "settle", None):
            self._guarded(first + count - 1, settle)
            self._look()
        self._say({"done": True})

    def _guarded(self, number: int, work: Callable[[], object]) -> None:
        """Do work; report a reached goal, a lack of memory, or an unexpected exception."""
        try:
            work()
        except Reached as reached:
            self._reached(number, reached.goal, reached.seen)
        except MemoryError:
            self._reached(number, "hang", "no memory is left")
        except Exception as error:  # noqa: BLE001 - each is a finding
            at = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(at.filename).name}:{at.lineno}"
            self._reached(number, "exception", f"{type(error).__name__} in {place}: {str(error)[:300]}")

    def _look(self) -> None:
        """Report the goals that the field shows as reached."""
        for number, goal, seen in self._field.signs():
            self._reached(number, goal, seen)

    def _reached(self, number: int, goal: str, seen: str) -> None:
        """Print a reached goal as a line of JSON."""
        self._say({"reached": goal, "number": number, "seen": seen[:500]})


def _peak_mib(*, reset: bool = False) -> float:
    """Return the peak of this process's memory in MiB since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text(RESET_PEAK)
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    """Run the way and the tries in the arguments."""
    module, key, first, count, seed = *sys.argv[1:3], *map(int, sys.argv[3:6])
    importlib.import_module(module)  # registers the way
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    logging.disable()
    resource.setrlimit(resource.RLIMIT_AS, (MOST, MOST))
    with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as name:
        field = Field(Path(name))
        os.environ.update(XDG_STATE_HOME=f"{field.work}/state", XDG_CACHE_HOME=f"{field.work}/cache")
        os.environ["COLUMNS"] = "200"
        os.chdir(field.work)
        trial = Trial(WAYS[key], field, lambda result: print(json.dumps(result), file=answers))
        with field.stack:
            trial.run(first, count, seed)
    answers.flush()
    os._exit(0)  # do not wait for threads of Dask and Paramiko


if __name__ == "__main__":
    main()
