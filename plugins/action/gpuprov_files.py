# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes and removes the files of a role in one round trip; see plugins/modules/gpuprov_files.yml."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

ARGUMENTS = {
    "files": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "str", "required": True},
            "content": {"type": "str", "required": True},
            "mode": {"type": "str", "default": "0644"},
            "backup": {"type": "bool", "default": False},
            "validate": {"type": "str"},
            "wanted": {"type": "bool", "default": True},
        },
    },
    "remove": {"type": "list", "elements": "str", "default": []},
    "undo": {"type": "dict", "default": {}},
}

PROGRAM = "import gpuprov_files\ngpuprov_files.main()\n"


class ActionModule(ActionBase):
    """A module would bring Ansible's own library along, which takes longer there than all else."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        _result, arguments = self.validate_argument_spec(argument_spec=ARGUMENTS)
        result: dict[str, Any] = super().run(tmp, task_vars)
        question = {**arguments, "check": bool(self._task.check_mode)}
        told = self._script().ask(
            "gpuprov_files", "import gpuprov_files\ngpuprov_files.main()\n", question, task_vars
        )
        document = told.pop("document", {})
        return {**result, **told, **document}

    def _script(self) -> Any:
        """The action that runs a script on the node."""
        return self._shared_loader_obj.action_loader.get(
            "gpuprov.gpuprov.gpuprov_script",
            task=self._task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
