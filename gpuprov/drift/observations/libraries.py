"""Readings of repositories, fabric manager, CUDA toolkits, cuDNN and NCCL."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations.registry import observes
from gpuprov.expectations import Expectation
from gpuprov.expectations.libraries import CUDA_LINK, CUDA_PROFILE
from gpuprov.probe.facts import Facts, Missing


@observes("repositories.sources", "sources")
def _sources(facts: Facts, expectation: Expectation) -> Any:
    used = {
        f"{source.uri.rstrip('/')} {suite}"
        for source in facts.apt.sources
        if source.enabled
        for suite in source.suites
    }
    return [each for each in expectation.expected if each in used]


@observes("fabric_manager.fabric", "smi")
def _fabric(facts: Facts, expectation: Expectation) -> Any:
    if facts.smi.error:
        raise Missing("smi", facts.smi.error)
    states = {gpu.fabric_state or "not stated" for gpu in facts.smi.gpus}
    return expectation.expected if states == {expectation.expected} else ", ".join(sorted(states)) or "no GPU"


@observes("cuda.default", "files")
def _default_toolkit(facts: Facts, expectation: Expectation) -> Any:
    link = facts.files.get(CUDA_LINK)
    return link.target if link else None


@observes("cuda.environment", "environment")
def _cuda_environment(facts: Facts, expectation: Expectation) -> Any:
    found = facts.environment.get(CUDA_PROFILE, {})
    return {name: found.get(name) for name in expectation.expected}


@observes("nccl.configuration", "nccl")
def _nccl_configuration(facts: Facts, expectation: Expectation) -> Any:
    return {name: facts.nccl.settings.get(name) for name in expectation.expected}
