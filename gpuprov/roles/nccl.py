"""Variables and expectations of NCCL and /etc/nccl.conf."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.components import closure, packages, unwanted, version
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import fails, mends

CONFIGURATION = "/etc/nccl.conf"
PREFIX = "NCCL_"
HARMLESS = (
    *("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_TIMESTAMP_FORMAT"),
    *("NCCL_DEBUG_TIMESTAMP_LEVELS", "NCCL_WARN_ENABLE_DEBUG_INFO", "NCCL_SET_THREAD_NAME"),
    *("NCCL_GRAPH_DUMP_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_TOPO_DUMP_FILE_RANK"),
    *("NCCL_HOME", "NCCL_ROOT", "NCCL_ROOT_DIR", "NCCL_DIR", "NCCL_INCLUDE_DIR", "NCCL_LIB_DIR"),
    *("NCCL_LIBRARY", "NCCL_VERSION"),
)
"""Variables that change no connection: those of logs, and of programs that are compiled with NCCL (NCCL's
documentation, "Environment variables"; CMake's and PyTorch's modules that find NCCL).
"""

OVERRULED = (
    *fails(
        "nccl",
        "nccl.configuration",
        "a variable in /etc/environment",
        "a variable in profile.d",
        "a variable in security/pam_env.conf",
        "a variable in /etc/default/locale",
        "a variable in /etc/bash.bashrc",
        "a variable in root's ~/.bashrc",
        "a variable in environment.d",
        "a variable in DefaultEnvironment of systemd",
        "~/.nccl.conf of root, of the login or of /etc/skel",
        "NCCL_CONF_FILE",
        "a variable that the lock does not state",
    ),
    *mends(
        "nccl", "nccl.configuration", "a line in gpuprov's /etc/nccl.conf", "/etc/nccl.conf with mode 600"
    ),
    *fails("nccl", "nccl.unpackaged", "a library without a package in the linker's path"),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected packages and no files without a package, if NCCL is locked, and the configuration.

    The configuration is expected if it is stated or NCCL is locked: no variable but the stated ones is set,
    except those of `HARMLESS`.
    """
    found = packages("nccl.packages", group.components.nccl, "nccl")
    if group.components.nccl:
        found.append(Expectation("nccl.unpackaged", [], "nccl"))
    stated = group.setting("nccl")
    if stated is not None or group.components.nccl:
        values = {name: str(value) for name, value in (stated or {}).items()}
        found.append(Expectation("nccl.configuration", values, "nccl"))
    return found


def changes_connections(name: str) -> bool:
    """Return whether a variable can change how NCCL connects GPUs."""
    return name.startswith(PREFIX) and name not in HARMLESS


def for_root_alone(value: str | None) -> str | None:
    """Return the value of a setting in a file that only root can read, with a note; None without a value."""
    return None if value is None else f"{value}, for root alone"


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return version, packages, unwanted packages, configuration; None or empty for those that the lock does
    not have.
    """
    nccl = group.components.nccl
    return {
        "nccl_version": version(nccl),
        "nccl_packages": closure(nccl),
        "nccl_unwanted": unwanted(group, "nccl"),
        "nccl_configuration": group.setting("nccl"),
    }
