"""Variables and expectations of NCCL and /etc/nccl.conf."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.components import closure, packages, unwanted, version
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import fails

CONFIGURATION = "/etc/nccl.conf"

OVERRULED = (
    *fails(
        "nccl",
        "nccl.configuration",
        "a variable in /etc/environment",
        "a variable in profile.d",
        "a variable in security/pam_env.conf",
        "a variable in environment.d",
        "a variable in DefaultEnvironment of systemd",
        "~/.nccl.conf of root, of the login or of /etc/skel",
        "NCCL_CONF_FILE",
    ),
    *fails("nccl", "nccl.unpackaged", "a library without a package in the linker's path"),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected packages and no files without a package, if NCCL is locked, and the configuration.

    The configuration is expected only if it is stated.
    """
    found = packages("nccl.packages", group.components.nccl, "nccl")
    if group.components.nccl:
        found.append(Expectation("nccl.unpackaged", [], "nccl"))
    stated = group.setting("nccl")
    if stated is not None:
        values = {name: str(value) for name, value in stated.items()}
        found.append(Expectation("nccl.configuration", values, "nccl"))
    return found


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return version, packages, configuration; None or empty for those that the lock does not have."""
    nccl = group.components.nccl
    return {
        "nccl_version": version(nccl),
        "nccl_packages": closure(nccl),
        "nccl_unwanted": unwanted(group, "nccl"),
        "nccl_configuration": group.setting("nccl"),
    }
