"""Observations of CUDA toolkits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.roles.cuda_toolkit import CUDA_HOME


@observes("cuda.default", "files")
def _default_toolkit(facts: Facts, expectation: Expectation) -> Any:
    """Return the folder to which /usr/local/cuda leads, or None."""
    link = facts.files.get(CUDA_HOME)
    return link.leads_to if link and link.exists else None


@names_who("cuda.default")
def _leads(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield /usr/local/cuda, the link that decides the default toolkit."""
    yield CUDA_HOME


@observes("cuda.environment", "variables")
def _cuda_environment(facts: Facts, expectation: Expectation) -> Any:
    """Return CUDA_HOME and the path of nvcc in logins, or in services that differ."""
    home = facts.variables.of("CUDA_HOME", CUDA_HOME).value
    return {"CUDA_HOME": home, "nvcc": facts.variables.compiler.value}


@names_who("cuda.environment")
def _sets(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield the places that set a differing CUDA_HOME or the folder of another nvcc."""
    if "CUDA_HOME" in expectation.expected:
        yield facts.variables.of("CUDA_HOME", CUDA_HOME).place
    if "nvcc" in expectation.expected:
        yield facts.variables.compiler.place
