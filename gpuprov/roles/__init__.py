"""Roles: their Ansible variables and the expected state of a node, derived from the lock.

One file per role, with `variables(group)` and `expectations(group)`, both pure functions of a locked group.
The names of its variables begin with the role's; `ROLE_unwanted` matches packages that must be absent.
`ROLES` is the only ordered table of them.
"""

from __future__ import annotations

from gpuprov.roles.expectation import Expectation, Severity
from gpuprov.roles.table import (
    BY_NAME,
    OVERRULED,
    ROLES,
    UNITS,
    Role,
    everything_else,
    expectations,
    first_packages,
    role_of,
    unchecked,
    variables,
)

__all__ = [
    "BY_NAME",
    "OVERRULED",
    "ROLES",
    "UNITS",
    "Expectation",
    "Role",
    "Severity",
    "everything_else",
    "expectations",
    "first_packages",
    "role_of",
    "unchecked",
    "variables",
]
