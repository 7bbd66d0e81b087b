"""Variables and expectations of tuning: limits, kernel parameters, processors, the environment of logins."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import NOT_APPLIED, NOT_BY_SYSTEMD, fails, mends

DEBUGGING = (
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
    "TORCH_USE_CUDA_DSA",
)
"""Variables for debugging, which make every program slower or stop it (CUDA C programming guide,
"Environment variables"; PyTorch's documentation of CUDA's environment variables).
"""

OVERRULED = (
    *fails("tuning", "tuning.limits", "a later file of security/limits.d"),
    *fails("tuning", "tuning.service_limits", "a later file of systemd/system.conf.d"),
    *mends("tuning", "tuning.sysctl", "sysctl --write by hand"),
    *fails("tuning", "tuning.sysctl_at_boot", "a later file of sysctl.d", NOT_APPLIED, NOT_BY_SYSTEMD),
    *mends("tuning", "tuning.hugepages", "the kernel's command line, tuned, a write to /sys"),
    *mends("tuning", "tuning.governor", "tuned, power-profiles-daemon, a write to /sys"),
    *fails(
        "tuning",
        "tuning.environment",
        "a variable in profile.d",
        "a variable in environment.d",
        "SetEnv of sshd",
        "Environment= in a drop-in for all services",
        "pam_env in PAM's service of sshd or cron",
    ),
    *mends("tuning", "tuning.debugging", "a variable in a login file"),
    *fails("tuning", "tuning.debugging", "a variable in DefaultEnvironment of systemd"),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the stated values, and no variable for debugging; empty if the lock states no tuning."""
    stated = group.setting("tuning")
    if stated is None:
        return []
    values = {
        "tuning.limits": limits(stated),
        "tuning.service_limits": limits(stated),
        "tuning.sysctl": sysctls(stated),
        "tuning.sysctl_at_boot": sysctls(stated),
        "tuning.hugepages": stated.get("transparent_hugepages"),
        "tuning.governor": stated.get("governor"),
        "tuning.environment": environment(stated),
    }
    role = "system_tuning"
    found = [Expectation(check, value, role) for check, value in values.items() if value]
    return [*found, Expectation("tuning.debugging", [], role)]


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return the stated values, and the variables for debugging to remove; the role removes others that it
    set before.
    """
    stated = group.setting("tuning") or {}
    return {
        "system_tuning_limits": limits(stated),
        "system_tuning_sysctl": sysctls(stated),
        "system_tuning_hugepages": stated.get("transparent_hugepages") or "unset",
        "system_tuning_governor": stated.get("governor"),
        "system_tuning_environment": environment(stated),
        "system_tuning_unwanted_variables": list(DEBUGGING),
    }


def limits(stated: dict[str, Any]) -> dict[str, int | str]:
    """Return the stated limits by name: bytes of `memlock` and `stack`, a number of `nofile`, or
    "unlimited".
    """
    return {name: value for name, value in stated.get("limits", {}).items() if value is not None}


def sysctls(stated: dict[str, Any]) -> dict[str, str]:
    """Return kernel parameter → value as in /proc/sys, including automatic NUMA balancing if stated."""
    balancing = stated.get("numa_balancing")
    own = {} if balancing is None else {"kernel.numa_balancing": str(int(balancing))}
    return {**{name: str(value) for name, value in stated.get("sysctl", {}).items()}, **own}


def environment(stated: dict[str, Any]) -> dict[str, str]:
    """Return variable → value as a login has it."""
    return {name: str(value) for name, value in stated.get("environment", {}).items()}
