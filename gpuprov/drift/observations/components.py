"""Readings of packages: those that the lock names are at their versions, those it rules out are not there."""

from __future__ import annotations

import re
from typing import Any

from gpuprov.drift.observations.registry import observes
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.roles.components import ABSENT_CHECKS, PACKAGE_CHECKS


def _versions(facts: Facts, expectation: Expectation) -> Any:
    return {name: facts.packages.version(name) for name in expectation.expected}


def _absent(facts: Facts, expectation: Expectation) -> Any:
    names = (name for name in facts.packages.by_name if re.fullmatch(str(expectation.subject), name))
    return sorted(name for name in names if facts.packages.version(name))


for _check in PACKAGE_CHECKS:
    observes(_check, "packages")(_versions)
for _check in ABSENT_CHECKS:
    observes(_check, "packages")(_absent)
