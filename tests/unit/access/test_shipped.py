"""Options of sshd as systems ship them, and what is no looser."""

from __future__ import annotations

import pytest

from gpuprov.access.shipped import as_shipped, compared
from gpuprov.access.sshd import policies


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("permitrootlogin", "no"),
        ("permitrootlogin", "forced-commands-only"),
        ("authorizedkeysfile", ".ssh/authorized_keys"),
        ("authorizedkeysfile", "none"),
        ("authorizedkeyscommand", "/usr/share/ec2-instance-connect/eic_run_authorized_keys %u %f"),
        ("pamservicename", None),
    ],
)
def test_a_stricter_value_or_one_of_a_cloud_s_image_is_as_shipped(keyword: str, value: str | None) -> None:
    shipped = as_shipped("ubuntu24.04")[keyword]
    assert compared(keyword, value, shipped) == shipped


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("permitrootlogin", "yes"),
        ("permitemptypasswords", "yes"),
        ("authorizedkeysfile", ".ssh/authorized_keys /etc/keys/%u"),
        ("authorizedkeyscommand", "/usr/local/bin/keys"),
        ("trustedusercakeys", "/etc/ssh/ca"),
        ("hostbasedauthentication", "yes"),
        ("ignorerhosts", "no"),
        ("permituserenvironment", "LANG"),
        ("forcecommand", "/bin/sh"),
        ("gssapiauthentication", "yes"),
        ("usepam", "no"),
    ],
)
def test_a_looser_value_stays(keyword: str, value: str) -> None:
    assert compared(keyword, value, as_shipped("debian12")[keyword]) == value


def test_systems_differ() -> None:
    """Check that an option's default is that of the system, and that a value stricter than it is no
    difference.
    """
    assert as_shipped("rhel8")["permitrootlogin"] == "yes"
    assert as_shipped("rhel9")["gssapiauthentication"] == "yes"
    assert compared("permitrootlogin", "prohibit-password", "yes") == "yes"
    assert compared("gssapiauthentication", "no", "yes") == "yes"


def test_every_system_named_is_one_of_the_table() -> None:
    named = {system for each in policies()["shipped"] for system in each.get("systems", {})}
    assert named <= policies()["openssh"].keys()
