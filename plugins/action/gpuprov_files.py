# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action that writes and removes a role's files; see plugins/modules/gpuprov_files.yml."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuprov.gpuprov.plugins.plugin_utils.on_node import (
    OnNode,
    are_tables,
    are_texts,
    is_number,
    is_table,
    is_text,
)

ARGUMENTS = {
    "files": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "str", "required": True},
            "content": {"type": "str", "required": True},
            "mode": {"type": "str", "default": "0644"},
            "keep_mode": {"type": "bool", "default": False},
            "backup": {"type": "bool", "default": False},
            "validate": {"type": "str"},
            "wanted": {"type": "bool", "default": True},
            "block": {"type": "bool", "default": False},
            "replaces": {"type": "str"},
        },
    },
    "remove": {"type": "list", "elements": "str", "default": []},
    "undo": {"type": "dict", "default": {}},
}


RESULT = {
    "written": are_texts,
    "removed": are_texts,
    "former": is_table,
    "diff": are_tables,
    "rc": is_number,
    "stdout": is_text,
    "stderr": is_text,
}
"""Keys of the node's document that become keys of the result."""


class ActionModule(OnNode):
    """An action with one round trip for all files of a task."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Write, remove and restore the task's files; return the result of `gpuprov_files.settle`.

        In check mode nothing is changed. The result is failed if a content is not valid or a file cannot be
        written.

        Raises:
            AnsibleActionFail: the node is no longer leased to this run, or the node gave no valid answer.
        """
        _result, arguments = self.validate_argument_spec(argument_spec=ARGUMENTS)
        result: dict[str, Any] = super().run(tmp, task_vars)
        return {**result, **self.settle("gpuprov_files", RESULT, arguments, task_vars or {})}
