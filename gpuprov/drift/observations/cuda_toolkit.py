"""Readings of CUDA toolkits."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations.registry import observes
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.roles.cuda_toolkit import CUDA_LINK, CUDA_PROFILE


@observes("cuda.default", "files")
def _default_toolkit(facts: Facts, expectation: Expectation) -> Any:
    link = facts.files.get(CUDA_LINK)
    return link.target if link else None


@observes("cuda.environment", "environment")
def _cuda_environment(facts: Facts, expectation: Expectation) -> Any:
    found = facts.environment.get(CUDA_PROFILE, {})
    return {name: found.get(name) for name in expectation.expected}
