"""Imports of the resolver: none that only locks need."""

from __future__ import annotations

import subprocess
import sys


def test_the_resolver_imports_nothing_that_only_locks_need() -> None:
    heavy = "{'pydantic', 'yaml', 'debian', 'urllib.request'}"
    code = f"import sys, gpuprov.locking.resolve; sys.exit(', '.join({heavy} & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
