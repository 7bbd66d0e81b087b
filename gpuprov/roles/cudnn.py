"""cuDNN."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.components import closure, packages, unwanted, version
from gpuprov.roles.expectation import Expectation


def expectations(group: LockedGroup) -> list[Expectation]:
    """Its packages."""
    return packages("cudnn.packages", group.components.cudnn, "cudnn")


def variables(group: LockedGroup) -> dict[str, Any]:
    """Version and packages."""
    cudnn = group.components.cudnn
    return {
        "cudnn_version": version(cudnn),
        "cudnn_packages": closure(cudnn),
        "cudnn_unwanted": unwanted(group, "cudnn"),
    }
