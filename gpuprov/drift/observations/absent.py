"""Readings of what shall not be there."""

from __future__ import annotations

import re
from typing import Any

from gpuprov.drift.observations.registry import observes
from gpuprov.expectations import Expectation
from gpuprov.probe.facts import Facts


@observes("cuda.absent", "packages")
@observes("cudnn.absent", "packages")
@observes("nccl.absent", "packages")
@observes("docker.absent", "packages")
@observes("containerd.absent", "packages")
@observes("container_toolkit.absent", "packages")
@observes("dcgm.absent", "packages")
@observes("node_exporter.absent", "packages")
@observes("profiling_tools.absent", "packages")
def _absent(facts: Facts, expectation: Expectation) -> Any:
    names = (name for name in facts.packages.by_name if re.fullmatch(str(expectation.subject), name))
    return sorted(name for name in names if facts.packages.version(name))
