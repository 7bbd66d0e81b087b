# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action that runs a program on the node; see plugins/modules/gpuprov_command.yml."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuprov.gpuprov.plugins.plugin_utils.on_node import OnNode

ARGUMENTS = {
    "argv": {"type": "list", "elements": "str", "required": True},
    "stdin": {"type": "str", "default": ""},
}
NOTHING = {"rc": 0, "stdout": "", "stdout_lines": [], "stderr": "", "stderr_lines": []}
"""Result of a program that check mode did not run."""


class ActionModule(OnNode):
    """An action without Python on the node, with the results of ansible.builtin.command."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the program and return its exit status and outputs; in check mode skip it.

        The task is always changed, and failed if the exit status is not 0.

        Raises:
            AnsibleActionFail: the node is no longer leased to this run, or the output is too large.
        """
        _result, arguments = self.validate_argument_spec(argument_spec=ARGUMENTS)
        result: dict[str, Any] = super().run(tmp, task_vars)
        if self._task.check_mode:
            return {**result, **NOTHING, "skipped": True}
        said = self.execute(arguments["argv"], arguments["stdin"], task_vars or {})
        failed = {"failed": True, "msg": "non-zero return code"} if said["rc"] else {}
        return {**result, "changed": True, "cmd": arguments["argv"], **said, **failed}
