"""Checks of tuning: limits and variables of a fresh login and a new service, and kernel parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuprov.roles.system_tuning import DEBUGGING
from gpuprov.verify.readings import not_applied

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node

USERS = ("root", "nobody")  # limits for all users do not apply to root (limits.conf(5))
VARIABLES = "grep -nE '^[^#]*=' /etc/environment /etc/environment.d/*.conf"


@pytest.mark.check("tuning.limits", "grep -rv '^#' /etc/security/limits.conf /etc/security/limits.d")
def test_fresh_login_has_the_limits(host: Node, expected: dict[str, Any]) -> None:
    """Check soft and hard limits of a fresh login, for root and for a user without privileges."""
    seen = {user: host.tuning.login(user).limits for user in USERS}
    assert {
        user: {name: limits[name] for name in expected} for user, limits in seen.items()
    } == dict.fromkeys(USERS, expected)


@pytest.mark.check("tuning.service_limits", "systemctl show | grep DefaultLimit")
def test_new_service_has_the_limits(host: Node, expected: dict[str, Any]) -> None:
    """Check soft and hard limits of a service started now."""
    assert {name: host.tuning.service.limits[name] for name in expected} == expected


@pytest.mark.check("tuning.sysctl", "sysctl --system --dry-run")
def test_kernel_has_the_parameters(host: Node, expected: dict[str, str]) -> None:
    """Check the current value of each locked kernel parameter."""
    assert host.tuning.sysctls(expected) == expected


@pytest.mark.check("tuning.sysctl_at_boot", "systemctl cat systemd-sysctl", "grep -rn = /etc/sysctl.d")
def test_next_boot_sets_the_parameters(host: Node, expected: dict[str, str]) -> None:
    """Check that systemd sets each locked kernel parameter to its value, by files of sysctl.d(5)."""
    sets = {name: host.tuning.boot_sysctls.get(name) for name in expected}
    assert (not_applied(host, "tuning.sysctl_at_boot") or sets) == expected


@pytest.mark.check("tuning.hugepages")
def test_kernel_uses_huge_pages_as_wanted(host: Node, expected: str) -> None:
    """Check the current mode of transparent huge pages."""
    assert host.tuning.hugepages == expected


@pytest.mark.check("tuning.governor")
def test_every_processor_that_has_a_governor_has_this_one(host: Node, expected: str) -> None:
    """Check that no processor has another frequency governor; it passes without frequency scaling."""
    assert host.tuning.governors <= {expected}


@pytest.mark.check("tuning.environment", VARIABLES)
def test_fresh_login_has_the_variables(host: Node, expected: dict[str, str]) -> None:
    """Check that a fresh login has each locked variable, and that no service has another value."""
    assert {name: host.tuning.variable(name, value) for name, value in expected.items()} == expected


@pytest.mark.check("tuning.debugging", VARIABLES)
def test_no_login_is_slowed_down_for_debugging(host: Node, expected: list[str]) -> None:
    """Check that no variable of `DEBUGGING` is set for logins or services."""
    assert [name for name in DEBUGGING if host.tuning.variable(name, None) is not None] == expected
