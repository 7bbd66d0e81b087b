# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that the facts of a node set no variable of a role.

The result of any module can have facts. Unless `inject_facts_as_vars` is off they are variables, and precede
those of the inventory and of a role's defaults: a node could set any, such as a path on the controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

ROLES = Path(__file__).parents[2] / "roles"
NAMES = ("gpuprov_", *(f"{role.name}_" for role in sorted(ROLES.iterdir()) if role.is_dir()))
"""Beginnings of the names of variables of roles and playbooks."""
SHOWN = 3


def refuse_variables(task_vars: Mapping[str, Any] | None) -> None:
    """Refuse a node whose facts have the names of variables of roles, also if they are not injected.

    Raises:
        AnsibleActionFail: it has some; the message names the first ones.
    """
    facts = (task_vars or {}).get("ansible_facts") or {}
    if found := sorted(name for name in facts if str(name).startswith(("__", *NAMES))):
        names = ", ".join(str(name)[:80] for name in found[:SHOWN])
        raise AnsibleActionFail(
            f"facts of the node set variables of roles: {names}; expected none; find out who controls the "
            "node, and do not cache set_fact for such names"
        )
