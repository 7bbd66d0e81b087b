"""Readings of what shall not be there."""

from __future__ import annotations

import re
from typing import Any

from gpuprov.expectations import Expectation
from gpuprov.facts import Facts
from gpuprov.observations.registry import observes


@observes("cuda.absent")
@observes("cudnn.absent")
@observes("nccl.absent")
@observes("docker.absent")
@observes("containerd.absent")
@observes("container_toolkit.absent")
@observes("dcgm.absent")
@observes("node_exporter.absent")
@observes("profiling_tools.absent")
def _absent(facts: Facts, expectation: Expectation) -> Any:
    names = (name for name in facts.packages.by_name if re.fullmatch(str(expectation.subject), name))
    return sorted(name for name in names if facts.packages.version(name))
