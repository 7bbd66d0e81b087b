# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action that starts, stops, enables or disables a systemd unit; see plugins/modules/gpuprov_unit.yml."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuprov.gpuprov.plugins.plugin_utils.on_node import OnNode, are_texts

ARGUMENTS = {
    "name": {"type": "str", "required": True},
    "enabled": {"type": "bool"},
    "state": {"type": "str", "choices": ["started", "stopped", "restarted"]},
    "daemon_reload": {"type": "bool", "default": False},
    "condition": {"type": "list", "elements": "str", "default": []},
}


RESULT = {"acts": are_texts}
"""Keys of the node's document that become keys of the result."""


class ActionModule(OnNode):
    """An action with one round trip for all changes to a unit."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Bring the unit to its state; return the result of `gpuprov_unit.settle`.

        In check mode nothing is changed. The result is failed if systemd refuses.

        Raises:
            AnsibleActionFail: the node is no longer leased to this run, or the node gave no valid answer.
        """
        _result, arguments = self.validate_argument_spec(argument_spec=ARGUMENTS)
        result: dict[str, Any] = super().run(tmp, task_vars)
        return {**result, **self.settle("gpuprov_unit", RESULT, arguments, task_vars or {})}
