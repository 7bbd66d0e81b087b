"""Readings of packages that the lock names with their versions, whoever brings them."""

from __future__ import annotations

from typing import Any

from gpuprov.expectations import Expectation
from gpuprov.facts import Facts
from gpuprov.observations.registry import observes


@observes("driver.packages")
@observes("fabric_manager.packages")
@observes("cuda.packages")
@observes("cudnn.packages")
@observes("nccl.packages")
@observes("container_toolkit.packages")
@observes("containerd.packages")
@observes("docker.packages")
@observes("profiling.packages")
@observes("monitoring.packages")
@observes("monitoring.dcgm_packages")
def _versions(facts: Facts, expectation: Expectation) -> Any:
    return {name: facts.packages.version(name) for name in expectation.expected}
