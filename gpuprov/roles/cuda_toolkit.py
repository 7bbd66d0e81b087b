"""Variables and expectations of CUDA toolkits, and the environment of logins."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.components import closure, unwanted, version
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import fails, mends

CUDA_HOME = "/usr/local/cuda"
"""A link to the default toolkit, by Debian's alternatives."""
ENVIRONMENT = {"CUDA_HOME": CUDA_HOME, "nvcc": f"{CUDA_HOME}/bin/nvcc"}
"""A variable, and the compiler in a login's PATH."""

OVERRULED = (
    *mends("cuda", "cuda.default", "another link at /usr/local/cuda", "update-alternatives by hand"),
    *fails(
        "cuda",
        "cuda.environment",
        "CUDA_HOME or PATH in a later file of profile.d",
        "CUDA_HOME in DefaultEnvironment of systemd",
        "CUDA_HOME in environment.d",
        "a file of logins that only root can read",
    ),
    *fails("cuda", "cuda.unpackaged", "a toolkit from a runfile, or its libraries"),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected packages, default toolkit, environment of logins, and no unpackaged files.

    Empty if CUDA is not locked.
    """
    cuda, compat = group.components.cuda, group.components.compat
    if cuda is None:
        return []
    role = "cuda_toolkit"
    return [
        Expectation("cuda.packages", {**cuda.closure, **closure(compat)}, role),
        Expectation("cuda.default", f"{CUDA_HOME}-{cuda.default}", role),
        Expectation("cuda.environment", ENVIRONMENT, role),
        Expectation("cuda.unpackaged", [], role),
    ]


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return packages, including forward compatibility's, and the default toolkit, None if not locked."""
    cuda, compat = group.components.cuda, group.components.compat
    return {
        "cuda_toolkit_packages": {**closure(cuda), **closure(compat)},
        "cuda_toolkit_version": version(cuda),
        "cuda_toolkit_default": cuda.default if cuda else None,
        "cuda_toolkit_unwanted": unwanted(group, "cuda"),
    }
