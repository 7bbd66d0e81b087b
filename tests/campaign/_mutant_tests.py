"""Copies of the checkout, the tests that reach a line, and runs of these tests on a mutant."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coverage import CoverageData

from tests import ROOT
from tests.campaign._mutations_of_code import Mutant
from tests.campaign.coverage import COVERED, UNIT_TESTS

KEPT = ROOT / "build/mutants"
"""The last map of tests, which is used again until a file of the checkout changes."""
MOST, MOST_OF_A_SURVIVOR = 30, 300
"""Number of tests that are run on a mutant; of those that are then run on one that survived."""
LIMITED = ("prlimit", f"--as={4 << 30}", f"--fsize={1 << 30}")
READS = "+dac_read_search"
UNPRIVILEGED = (
    *("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--no-new-privs"),
    *(f"--bounding-set=-all,{READS}", f"--inh-caps=-all,{READS}", f"--ambient-caps=-all,{READS}"),
)
"""Removes root's rights but one: a mutant may write to any path, but must read Python and the checkout."""


@dataclass
class Copy:
    """A copy of the checkout without its history, of a user without rights, with its temporary files."""

    folder: Path

    def fill(self) -> None:
        """Copy the files of the checkout that git knows or does not ignore."""
        listed = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT)
        for name in filter(None, os.fsdecode(listed).split("\0")):
            if (ROOT / name).exists():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.folder / name, follow_symlinks=False)
        (self.folder / ".venv").symlink_to(ROOT / ".venv")
        for place in ("home", "tmp"):
            (self.folder / "build" / place).mkdir(parents=True)
        compiled = (sys.executable, "-m", "compileall", "-q", "gpuprov", "plugins", "tests")
        subprocess.run(compiled, cwd=self.folder, check=False)
        if not os.geteuid():
            subprocess.run(["chown", "-R", "nobody:nogroup", str(self.folder)], check=True)

    def started(self, *command: str, **said: str) -> subprocess.Popen[bytes]:
        """Start pytest in the copy with its own environment, without rights of root, and without output."""
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{self.folder}:{self.folder}/plugins/module_utils",
            "HOME": f"{self.folder}/build/home",
            "TMPDIR": f"{self.folder}/build/tmp",
            "TESTS_SEEN": f"{self.folder}/build/tmp/seen.json",
            "PYTHONDONTWRITEBYTECODE": "1",  # a mutant's bytecode must not outlive it
            **said,
        }
        limited = (*LIMITED, *(() if os.geteuid() else UNPRIVILEGED))
        whole = (*limited, sys.executable, "-m", "pytest", "-p", "tests.campaign._tests_seen", *command)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(whole, cwd=self.folder, env=environment, start_new_session=True, **quiet)

    def seen(self) -> dict[str, Any]:
        """Return and remove the results of the last tests; empty if they did not end."""
        path = self.folder / "build/tmp/seen.json"
        if not path.exists():
            return {}
        text = path.read_text()
        path.unlink()
        return dict(json.loads(text))

    def verdict(self, mutant: Mutant, tests: list[str], limit: float) -> str:
        """Return `killed`, `survived`, `timed out`, or `unstable` if tests fail without the change too."""
        path = self.folder / mutant.path
        path.write_text(mutant.new)
        try:
            failed = self.exit_code(tests, limit)
        except subprocess.TimeoutExpired:
            return "timed out"
        finally:
            shutil.copy2(ROOT / mutant.path, path)
        if not failed:
            return "survived"
        return "unstable" if self.exit_code(self.seen().get("failed") or tests, limit) else "killed"

    def exit_code(self, tests: list[str], limit: float) -> int:
        """Run tests in the copy; return pytest's exit code. After `limit` seconds they are killed, and
        TimeoutExpired is raised.
        """
        self.seen()
        process = self.started("-x", "-p", "no:xdist", *tests)
        try:
            return process.wait(limit)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Tests:
    """Unit tests by the lines that they run, and their seconds."""

    def __init__(self, copy: Copy) -> None:
        if not self.kept_is_new(copy):
            self.measure(copy)
        self.seconds: dict[str, float] = json.loads((KEPT / "seconds.json").read_text())
        self.data = CoverageData(str(KEPT / "coverage"))
        self.data.read()
        self.lines: dict[str, dict[int, list[str]]] = {}

    @staticmethod
    def kept_is_new(copy: Copy) -> bool:
        """Return whether the stored results are newer than every file of the copy."""
        files = [path for path in copy.folder.rglob("*.py") if not path.is_symlink()]
        newest = max(path.stat().st_mtime for path in files)
        return (KEPT / "seconds.json").exists() and (KEPT / "seconds.json").stat().st_mtime > newest

    @staticmethod
    def measure(copy: Copy) -> None:
        """Run all unit tests once, unchanged; a test that fails is not used.

        Raises:
            SystemExit: the tests did not end.
        """
        data = copy.folder / "build/tmp/coverage"
        copy.started(
            *UNIT_TESTS[2:], *COVERED, "--cov-context=test", "--timeout=600", COVERAGE_FILE=str(data)
        ).wait()
        seen = copy.seen()
        if not seen or not data.exists():
            raise SystemExit("the unit tests did not end: run `scripts/test tests/unit`")
        for name in seen["failed"]:
            print(f"fails without a change, not used: {name}")
        KEPT.mkdir(parents=True, exist_ok=True)
        shutil.copy(data, KEPT / "coverage")
        (KEPT / "seconds.json").write_text(json.dumps(seen["passed"]))

    def names(self, mutant: Mutant) -> set[str]:
        """Return all tests that reach a mutant."""
        if mutant.path not in self.lines:
            self.lines[mutant.path] = self.data.contexts_by_lineno(mutant.path)
        contexts = self.lines[mutant.path]
        lines = range(mutant.first, mutant.last + 1)
        found = {context.rpartition("|")[0] for line in lines for context in contexts.get(line, ())}
        return found & self.seconds.keys()

    def reaching(self, mutant: Mutant) -> list[str]:
        """Return tests in order: of each function the quickest first, and those of the package first."""
        room, before, ranked = mutant.path.split("/")[1], Counter[str](), defaultdict[int, list[str]](list)
        for name in sorted(self.names(mutant), key=lambda name: (self.seconds[name], name)):
            function = name.partition("[")[0]
            ranked[before[function]].append(name)
            before[function] += 1
        for same in ranked.values():
            same.sort(key=lambda name: f"tests/unit/{room}/" not in name)
        return [name for _, same in sorted(ranked.items()) for name in same]

    def limit(self, names: list[str]) -> float:
        """Return the seconds after which a run of tests has no end."""
        return 60 + 5 * sum(self.seconds[name] for name in names)
