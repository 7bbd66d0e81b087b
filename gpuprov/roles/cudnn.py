"""Variables and expectations of cuDNN."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.components import closure, packages, unwanted, version
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import fails

OVERRULED = fails("cudnn", "cudnn.unpackaged", "a library without a package in the linker's path")


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected packages, and no library without a package; empty if cuDNN is not locked."""
    found = packages("cudnn.packages", group.components.cudnn, "cudnn")
    return [*found, Expectation("cudnn.unpackaged", [], "cudnn")] if found else []


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return version and packages; None and empty if cuDNN is not locked."""
    cudnn = group.components.cudnn
    return {
        "cudnn_version": version(cudnn),
        "cudnn_packages": closure(cudnn),
        "cudnn_unwanted": unwanted(group, "cudnn"),
    }
