# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action that runs a role's Python script on the controller; see plugins/modules/gpuprov_controller.yml."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from contextlib import suppress
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
MEMORY = 512 << 20
"""Maximum size in bytes of a script's address space, on Linux: a script reads text of a node."""


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
            done = run_limited(script, question if isinstance(question, str) else json.dumps(question))
        except subprocess.TimeoutExpired:
            raise AnsibleActionFail(f"{script.name} gave no answer in {SECONDS} s") from None
        said = {"rc": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        return {**result, **answered(script.name, said)}


def run_limited(script: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run a script with a text as its standard input; its memory is limited before it gets the text.

    Raises:
        subprocess.TimeoutExpired: it took longer than `SECONDS`, and was killed.
    """
    with subprocess.Popen(
        [sys.executable, "-B", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    ) as child:
        with suppress(AttributeError, OSError):  # systems without such a limit; a script that has ended
            resource.prlimit(child.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
        try:
            stdout, stderr = child.communicate(text, SECONDS)
        except BaseException:
            child.kill()
            raise
    return subprocess.CompletedProcess(child.args, child.returncode, stdout, stderr)
