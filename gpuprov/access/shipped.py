"""Options of sshd that decide who may log in, as the systems ship them."""

from __future__ import annotations

from functools import cache

from gpuprov.access.sshd import policies

SYNONYMS = {"without-password": "prohibit-password"}
"""Value that sshd prints → its newer name."""


@cache
def as_shipped(system: str) -> dict[str, str]:
    """Return keyword in lower case → value with which a system ships it.

    Args:
        system: id of the operating system, such as `debian12`; an unknown one has the usual values.
    """
    return {
        each["keyword"].lower(): each.get("systems", {}).get(system, each["value"])
        for each in policies()["shipped"]
    }


@cache
def _no_looser(keyword: str) -> frozenset[str]:
    """Return further values of a keyword that admit no other user, and those of clouds' own images."""
    found = [each for each in policies()["shipped"] if each["keyword"].lower() == keyword]
    return frozenset(value for each in found for key in ("stricter", "clouds") for value in each.get(key, ()))


def compared(keyword: str, value: str | None, shipped: str) -> str:
    """Return the shipped value in place of one that admits no other user, and any other value unchanged.

    Args:
        value: the value in effect; None if this OpenSSH does not have the option.
    """
    return shipped if value is None or value in _no_looser(keyword) else value


def with_whom(value: str | None, user: str, address: str, listener: str) -> str:
    """Return the value of an option that does not hold for all logins, with its process or its login.

    Args:
        listener: command line of the sshd that has it, if another one does not; else empty.
    """
    return f"{value} by {listener}" if listener else f"{value} for {user} from {address}"
