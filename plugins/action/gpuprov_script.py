# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a Python script of a role on the node in one round trip; see plugins/modules/gpuprov_script.yml."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

UTILITIES = Path(__file__).parents[1] / "module_utils"
ARGUMENTS = {
    "script": {"type": "str", "required": True},
    "question": {"type": "raw", "default": {}},
}


class ActionModule(ActionBase):
    """What the script prints last is its answer; nothing of it is written to the node."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        _result, arguments = self.validate_argument_spec(argument_spec=ARGUMENTS)
        result: dict[str, Any] = super().run(tmp, task_vars)
        script = Path((task_vars or {})["role_path"], "files", arguments["script"])
        result.update(self.ask(script.name, script.read_text("utf-8"), arguments["question"], task_vars))
        return result

    def ask(
        self, script: str, source: str, question: Any, task_vars: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Run a script, given as its name and source; the task's result."""
        if "GPUPROV_LEASES" in os.environ:
            complaint = self._lease().run(task_vars=task_vars)["complaint"]
            if complaint:
                return {"failed": True, "msg": complaint}
        facts = (task_vars or {}).get("ansible_facts", {})
        python = facts.get("python", {}).get("executable", "python3")
        command = f"{self._compute_environment_string()} {shlex.join([python, '-'])}".strip()
        program = _program(source, json.dumps(question))
        return _answered(script, self._low_level_execute_command(command, in_data=program.encode()))

    def _lease(self) -> ActionBase:
        """The action that says whether the node is still the run's."""
        action: ActionBase = self._shared_loader_obj.action_loader.get(
            "gpuprov.gpuprov.gpuprov_lease",
            task=self._task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        return action


def _program(source: str, argument: str) -> str:
    """A script with its argument, and before it what it imports of ours."""
    return (
        "import sys, types\n"
        f"sys.argv[1:] = [{argument!a}]\n"
        f"for name, source in {_imported(source)!a}.items():\n"
        "    module = sys.modules[name] = types.ModuleType(name)\n"
        "    exec(compile(source, name, 'exec'), module.__dict__)\n"
        f"exec(compile({source!a}, 'script', 'exec'), {{'__name__': '__main__'}})\n"
    )


def _imported(source: str) -> dict[str, str]:
    """Name → source of the modules of ours that one imports, each after those that it needs."""
    found: dict[str, str] = {}
    for name in re.findall(r"(?m)^(?:import|from) (gpuprov_\w+)", source):
        text = (UTILITIES / f"{name}.py").read_text("utf-8")
        found |= {**_imported(text), name: text}
    return found


def _answered(script: str, said: dict[str, Any]) -> dict[str, Any]:
    """The task's result of what a script printed."""
    printed, _newline, last = said["stdout"].rstrip().rpartition("\n")
    try:
        document = json.loads(last) if said["rc"] == 0 else None
    except ValueError:
        document = None
    if not isinstance(document, dict):
        words = (said["stderr"].strip() or last).rpartition("\n")[2] or f"it ended with {said['rc']}"
        raise AnsibleActionFail(f"{script} gave no answer: {words}", result={"stderr": said["stderr"]})
    failure = document.get("failure")
    return {
        "changed": bool(document.get("changed", False)),
        "document": document,
        "output": [*printed.splitlines(), *said["stderr"].splitlines()],
        **({"failed": True, "msg": _sentence(failure)} if failure else {}),
    }


def _sentence(failure: dict[str, str | None]) -> str:
    """What was seen, and what to do."""
    return "; ".join(filter(None, (failure["says"], failure.get("do"))))
