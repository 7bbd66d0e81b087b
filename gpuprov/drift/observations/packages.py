"""Readings of packages that the lock names with their versions, whoever brings them."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations.registry import observes
from gpuprov.expectations import Expectation
from gpuprov.probe.facts import Facts


@observes("driver.packages", "packages")
@observes("fabric_manager.packages", "packages")
@observes("cuda.packages", "packages")
@observes("cudnn.packages", "packages")
@observes("nccl.packages", "packages")
@observes("container_toolkit.packages", "packages")
@observes("containerd.packages", "packages")
@observes("docker.packages", "packages")
@observes("profiling.packages", "packages")
@observes("monitoring.packages", "packages")
@observes("monitoring.dcgm_packages", "packages")
def _versions(facts: Facts, expectation: Expectation) -> Any:
    return {name: facts.packages.version(name) for name in expectation.expected}
