# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the results of Ansible's own modules may set: no variable of a role, and nothing for other nodes.

The result of any module can have facts. Unless `inject_facts_as_vars` is off they are variables, and precede
those of the inventory and of a role's defaults: a node could set any, such as a path on the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.vars import manager

# As the connection gpuprov_ssh does: a value of another form would end the play of all nodes.
constants.INTERNAL_RESULT_KEYS = tuple({*constants.INTERNAL_RESULT_KEYS, "ansible_stats"})

ROLES = Path(__file__).parents[2] / "roles"
NAMES = ("gpuprov_", *(f"{role.name}_" for role in sorted(ROLES.iterdir()) if role.is_dir()))
"""Beginnings of the names of variables of roles and playbooks."""
OF_CONNECTIONS = ("sftp_", "scp_", "control_path")
"""Beginnings of names of variables of Ansible's connection that it lets facts set, without `ansible_`."""
SHOWN = 3


def is_variable(fact: object) -> bool:
    """Return whether a fact, with `ansible_` or without, has the name of a variable that no node may set."""
    return str(fact).removeprefix("ansible_").startswith(("__", *NAMES, *OF_CONNECTIONS))


def without_variables(choose: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return Ansible's function that chooses facts as variables, without those of `is_variable`."""

    @wraps(choose)
    def chosen(facts: Any) -> Any:
        return {name: value for name, value in choose(facts).items() if not is_variable(name)}

    return chosen


manager.clean_facts = without_variables(manager.clean_facts)


def refuse_variables(task_vars: Mapping[str, Any] | None) -> None:
    """Refuse a node whose facts have the names of variables of roles, also if they are not injected.

    Raises:
        AnsibleActionFail: it has some; the message names the first ones.
    """
    facts = (task_vars or {}).get("ansible_facts") or {}
    if found := sorted(filter(is_variable, map(str, facts))):
        names = ", ".join(name[:80] for name in found[:SHOWN])
        raise AnsibleActionFail(
            f"facts of the node set variables of roles: {names}; expected none; find out who controls the "
            "node, and do not cache set_fact for such names"
        )
