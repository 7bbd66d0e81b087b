"""Readings of NCCL's configuration."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations.registry import observes
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation


@observes("nccl.configuration", "nccl")
def _nccl_configuration(facts: Facts, expectation: Expectation) -> Any:
    return {name: facts.nccl.settings.get(name) for name in expectation.expected}
