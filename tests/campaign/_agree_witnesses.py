"""Drift and verify of one node, run side by side, without the start of a program for each.

`python -m tests.campaign._agree_witnesses` is the server that runs verify: it has pytest loaded, and forks
for each run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from gpuprov.drift.survey import survey
from gpuprov.model.lock import Lock
from gpuprov.verify import run_verification, runner
from gpuprov.verify.wanted import proofs
from tests import ROOT


@dataclass(frozen=True)
class Heard:
    """Failed checks of a node, by both witnesses; `NO_ANSWER` from one that could not judge it.

    Attributes:
        drift: checks in drift.
        verify: failed checks of verify, without proofs.
        proven: failed proofs, checks that only verify has.
    """

    drift: frozenset[str] = frozenset()
    verify: frozenset[str] = frozenset()
    proven: frozenset[str] = frozenset()

    @property
    def only_drift(self) -> frozenset[str]:
        """Checks that only drift reports."""
        return self.drift - self.verify

    @property
    def only_verify(self) -> frozenset[str]:
        """Checks that only verify reports; failed proofs if drift reports nothing at all."""
        return (self.verify - self.drift) or (frozenset() if self.drift else self.proven)

    @property
    def every(self) -> frozenset[str]:
        """All checks that one of both reports."""
        return self.drift | self.verify | self.proven

    def without(self, before: Heard) -> Heard:
        """Return what is new since an earlier time."""
        return Heard(self.drift - before.drift, self.verify - before.verify, self.proven - before.proven)


NO_ANSWER = "no answer"
"""In place of checks, if a witness could not judge the node."""


class Bench:
    """Both witnesses of the only node in a lock.

    Attributes:
        values: the values of the last reports, by witness and check.
    """

    def __init__(self, lock: Lock, node: str, server: subprocess.Popen[str]) -> None:
        self.lock, self.node, self._server = lock, node, server
        self.values: dict[str, str] = {}
        [group] = lock.groups.values()
        self._proofs = {each.check for each in proofs(group)}

    def hear(self) -> Heard:
        """Run both witnesses at the same time."""
        self.values = {}
        with ThreadPoolExecutor(2) as pool:
            drift, verify = pool.submit(self.drift), pool.submit(self._verify)
        seen, failed = drift.result(), verify.result()
        return Heard(seen, failed - self._proofs, failed & self._proofs)

    def drift(self) -> frozenset[str]:
        """Return the checks in drift."""
        [found] = survey(self.lock, [self.node])
        self.values |= {f"drift {each.check}": str(each.actual) for each in found.drift}
        self.values |= {"drift": str(found.reason)} if found.reason else {}
        return frozenset({NO_ANSWER} if found.reason else {each.check for each in found.drift})

    def _verify(self) -> frozenset[str]:
        """Return the checks that verify reports; record their values, and an error as a check."""
        with patch.object(runner, "_wait", self._wait):
            [found] = run_verification(self.lock, [self.node]).nodes
        self.values |= {f"verify {each.check}": str(each.actual) for each in found.failed_checks}
        if found.status in ("unreachable", "error"):
            self.values |= {"verify": str(found.message)}
            return frozenset({NO_ANSWER})
        return frozenset(each.check for each in found.failed_checks)

    def _wait(self, command: list[str], folder: Path, timeout: float, password: str | None) -> str:
        """Run pytest in a fork of the server, in place of `runner._wait`; no login has a password."""
        assert password is None
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        words = command[command.index("pytest") + 1 :]
        self._server.stdin.write(json.dumps({"words": words, "folder": str(folder)}) + "\n")
        self._server.stdin.flush()
        return f"pytest ended with status {self._server.stdout.readline().strip()} within {timeout:g} s"


@contextmanager
def bench(lock: Lock, node: str) -> Iterator[Bench]:
    """Yield the witnesses of a node; their server ends with the block."""
    command = [sys.executable, "-m", "tests.campaign._agree_witnesses"]
    kept = {name: value for name, value in os.environ.items() if name not in runner.NOT_INHERITED}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    ) as server:
        yield Bench(lock, node, server)
        assert server.stdin is not None
        server.stdin.close()


def serve() -> None:
    """Run pytest with the words of each line on standard input; answer with its exit status."""
    import pytest

    sys.dont_write_bytecode = False  # pytest rewrites the suite once, not in each fork
    # Loaded once, for all forks.
    import gpuprov.verify.plugin
    import gpuprov.verify.suite  # noqa: F401

    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            os.chdir(asked["folder"])
            null = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(null, number)
            os._exit(int(pytest.main(asked["words"])))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
