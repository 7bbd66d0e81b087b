# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action that runs a role's Python script on the node; see plugins/modules/gpuprov_script.yml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.gpuprov.gpuprov.plugins.plugin_utils.on_node import OnNode

ARGUMENTS = {
    "script": {"type": "str", "required": True},
    "question": {"type": "raw", "default": {}},
}


class ActionModule(OnNode):
    """An action with one round trip: the script's last line is its answer; no file is left on the node."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run a script of the role's folder `files` on the node; return the result of `OnNode.ask`.

        Raises:
            AnsibleActionFail: the node is no longer leased to this run, or the script gave no valid answer.
            OSError: the role has no such script.
        """
        _result, arguments = self.validate_argument_spec(argument_spec=ARGUMENTS)
        result: dict[str, Any] = super().run(tmp, task_vars)
        known = task_vars or {}
        script = Path(known["role_path"], "files", arguments["script"])
        return {**result, **self.ask(script.name, script.read_text("utf-8"), arguments["question"], known)}
