# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits of the results of Ansible's modules: they set no variable of a role, and nothing for other nodes.

The result of any module can have facts. Unless `inject_facts_as_vars` is off they are variables, and precede
those of the inventory and of a role's defaults: a node could set any, such as a path on the controller.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.executor import task_executor
from ansible.vars import clean, manager

# As the connection gpuprov_ssh does: a value of another form would end the play of all nodes.
constants.INTERNAL_RESULT_KEYS = tuple({*constants.INTERNAL_RESULT_KEYS, "ansible_stats"})

ROLES = Path(__file__).parents[2] / "roles"
NAMES = ("gpuprov_", *(f"{role.name}_" for role in sorted(ROLES.iterdir()) if role.is_dir()))
"""Beginnings of the names of variables of roles and playbooks."""
OF_CONNECTIONS = ("ansible_sftp_", "ansible_scp_", "ansible_control_path")
"""Beginnings of names of variables of Ansible's connection that it lets facts set."""


def without_variables(choose: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return Ansible's function that chooses facts as variables, without those that no node may set."""

    @wraps(choose)
    def chosen(facts: Any) -> Any:
        refused = ("__", *NAMES, *OF_CONNECTIONS)
        return {name: value for name, value in choose(facts).items() if not str(name).startswith(refused)}

    return chosen


# Each of these modules imports the function. The executor of ansible-core before 2.21 calls it for the
# further items of a loop, later releases the manager's.
for module in (clean, manager, *[task_executor] * hasattr(task_executor, "clean_facts")):
    module.clean_facts = without_variables(module.clean_facts)
