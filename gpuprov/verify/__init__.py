"""Verification: testinfra observes every node independently of drift, and compares it with the lock.

A plain pytest-testinfra package. `gpuprov verify` runs it; without that command it is

    pytest -p gpuprov.verify.plugin --pyargs gpuprov.verify.suite --lock fleet.lock.yml --limit gpu01

(the plugin is named because pytest reads the options of `--pyargs` packages too late to know `--lock`).
"""

from __future__ import annotations

from gpuprov.verify.connection import TimeLimits
from gpuprov.verify.runner import run_verification
from gpuprov.verify.verdict import CheckResult, NodeVerdict, Verdict

__all__ = ["CheckResult", "NodeVerdict", "TimeLimits", "Verdict", "run_verification"]
