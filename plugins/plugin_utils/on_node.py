# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Actions that do without Ansible's own library on the node, which costs more there than their work."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gpuprov.gpuprov.plugins.plugin_utils.leased import complaint

UTILITIES = Path(__file__).parents[1] / "module_utils"


class OnNode(ActionBase):
    """Programs and Python scripts by one round trip each; nothing is left on the node."""

    TRANSFERS_FILES = False

    def execute(self, argv: list[str], stdin: str, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Run a program; {"rc": 0, "stdout": "…", "stderr": "…"}.

        Raises:
            AnsibleActionFail: the node is no longer leased to this run.
        """
        if reason := complaint(str(task_vars.get("inventory_hostname", ""))):
            raise AnsibleActionFail(reason)
        words = f"{self._compute_environment_string()} {shlex.join(argv)}".strip()
        # Without any input Ansible's ssh asks for a terminal, and the two outputs become one.
        silent = words if stdin else f"{words} </dev/null"
        said: dict[str, Any] = self._low_level_execute_command(silent, in_data=stdin.encode() or b"\n")
        return said

    def ask(self, script: str, source: str, question: Any, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Run a Python script, given as its name and source; the task's result."""
        facts = task_vars.get("ansible_facts", {})
        python = facts.get("python", {}).get("executable", "python3")
        return _answered(
            script, self.execute([python, "-"], _program(source, json.dumps(question)), task_vars)
        )


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
