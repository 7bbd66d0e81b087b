# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action that runs a role's Python script on the controller; see plugins/modules/gpuprov_controller.yml."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gpuprov.gpuprov.plugins.plugin_utils.on_node import answered

ARGUMENTS = {
    "script": {"type": "str", "required": True},
    "question": {"type": "raw", "default": {}},
}
SECONDS = 60
"""Time limit of a script."""


class ActionModule(ActionBase):
    """An action without a connection.

    `delegate_to: localhost` is not the same: a node of that name would get the data of all nodes.
    """

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run a script of the role's folder `files`; return its answer as `answered` does.

        Raises:
            AnsibleActionFail: the script took too long, failed, or printed no document.
            OSError: the role has no such script.
        """
        _result, arguments = self.validate_argument_spec(argument_spec=ARGUMENTS)
        result: dict[str, Any] = super().run(tmp, task_vars)
        script = Path((task_vars or {})["role_path"], "files", arguments["script"])
        question = arguments["question"]
        try:
            done = subprocess.run(
                [sys.executable, "-B", script],
                input=question if isinstance(question, str) else json.dumps(question),
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise AnsibleActionFail(f"{script.name} gave no answer in {SECONDS} s") from None
        said = {"rc": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        return {**result, **answered(script.name, said)}
