# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Base of actions that run on the node without Ansible's library, which takes longer than their work."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.common.text.converters import to_text
from ansible.plugins.action import ActionBase
from ansible_collections.gpuprov.gpuprov.plugins.plugin_utils import (
    node_program,
    results,
)
from ansible_collections.gpuprov.gpuprov.plugins.plugin_utils.leased import complaint

# Ansible imports an action in its main process, and forks a process for each task and node.
node_program.preload()

SYSTEM_PYTHON = ["sh", "-c", 'p=/usr/bin/python3; [ -x "$p" ] || p=python3; exec "$p" "$@"', "sh"]
"""Command of the system's own Python, which has the package manager's modules, or of the first in PATH."""
CLOSED = re.compile(r"(?m)^Shared connection to \S+ closed\.\r?\n?")
"""Line of ssh about the end of a shared connection."""
ENTRIES, TEXTS = 1000, 8192
"""Maximum number of entries of a list or mapping in an answer, and of one that has only texts: templates of
tasks take the square of the number of some, and no time limit of a task includes its templates.
"""
NOT_FOUND = 127
"""Exit status of a shell for a program that does not exist."""
LINES = 1 << 14
"""Maximum number of lines of a program's output."""


def is_text(value: Any) -> bool:
    """Return whether a value is a string, of any length."""
    return isinstance(value, str)


def is_number(value: Any) -> bool:
    """Return whether a value is an integer, and no boolean."""
    return type(value) is int


def are_texts(value: Any) -> bool:
    """Return whether a value is a list of texts."""
    return isinstance(value, list) and all(map(is_text, value))


def is_table(value: Any) -> bool:
    """Return whether a value is a dict of texts and nulls."""
    return isinstance(value, dict) and all(each is None or is_text(each) for each in value.values())


def are_tables(value: Any) -> bool:
    """Return whether a value is a list of dicts of texts and nulls."""
    return isinstance(value, list) and all(map(is_table, value))


Keys = Mapping[str, Callable[[Any], bool]]
"""Key of a module's document → function that returns whether its value has the right type."""


class OnNode(ActionBase):
    """An action that runs programs and Python scripts in one round trip each; no file is left on the node."""

    TRANSFERS_FILES = False

    def execute(self, argv: list[str], stdin: str, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Run a program; return its `rc`, `stdout`, `stdout_lines`, `stderr` and `stderr_lines`.

        The task's `environment` and `become` apply. Exit status 255 is returned as 254.

        Args:
            argv: the program and its arguments.
            stdin: its standard input.

        Raises:
            AnsibleActionFail: the node is no longer leased to this run, or the output is too large.
        """
        if reason := complaint(str(task_vars.get("inventory_hostname", ""))):
            raise AnsibleActionFail(reason)
        words = f"{self._compute_environment_string()} {shlex.join(argv)}".strip()
        # Without input Ansible's ssh requests a terminal, which merges the two outputs. Ansible takes 255 for
        # a lost connection.
        whole = f"{words}{'' if stdin else ' </dev/null'}; s=$?; test $s -ne 255 || s=254; exit $s"
        said = self._low_level_execute_command(whole, in_data=stdin.encode() or b"\n")
        # Mitogen returns bytes, and appends the line `Shared connection to … closed.`.
        texts = {name: to_text(said[name]) for name in ("stdout", "stderr")}
        texts["stderr"] = CLOSED.sub("", texts["stderr"])
        if any(len(text) > results.SIZE or results.count_lines(text) > LINES for text in texts.values()):
            raise AnsibleActionFail(f"the output of {argv[0]} is too large")
        return {
            "rc": said["rc"],
            **texts,
            **{f"{name}_lines": text.splitlines() for name, text in texts.items()},
        }

    def settle(
        self, module: str, keys: Keys, arguments: Mapping[str, Any], task_vars: dict[str, Any]
    ) -> dict[str, Any]:
        """Run `main` of a module of `module_utils` with arguments; return its document as the task's result.

        Only the stated keys are taken: the document is the node's text, and Ansible follows others in the
        result of an action, such as `add_host`, which sets variables of any host.

        Args:
            module: its name.
            keys: keys of the document that become keys of the result, with their types.
            arguments: its options; `check`, whether the task is in check mode, is added.

        Raises:
            AnsibleActionFail: as `ask`; or a value of the document has another type.
        """
        question = {**arguments, "check": bool(self._task.check_mode)}
        result = self.ask(module, f"import {module}\n{module}.main()\n", question, task_vars)
        document = result.pop("document")
        taken = {key: document[key] for key in keys if key in document}
        if wrong := [key for key, value in taken.items() if not keys[key](value)]:
            raise AnsibleActionFail(
                f"{module} gave no answer: {', '.join(wrong)} of its document has a wrong type"
            )
        return {**result, **taken}

    def ask(self, script: str, source: str, question: Any, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Run a Python script on the node; return the task's result: `changed`, `document`, `output`.

        The script gets the question as JSON in its first argument. The last line that it prints is the
        document, a JSON object; other lines, and those of standard error, are `output`. With `failure` in the
        document the task is failed.

        Args:
            script: name of the script, for messages.
            source: its source.
            question: a value for JSON.

        Raises:
            AnsibleActionFail: the node is no longer leased to this run, or the script failed or printed no
                document.
        """
        program = node_program.script(source, json.dumps(question))
        python = _python(task_vars)
        said = self.execute([*python, "-IB", "-"], program, task_vars)
        if said["rc"] == NOT_FOUND:
            name = "python3" if python is SYSTEM_PYTHON else python[0]
            raise AnsibleActionFail(
                f"{name}, in which the scripts of roles run, is not on the node; run `gpuprov bootstrap`"
            )
        return answered(script, said)


def _python(task_vars: Mapping[str, Any]) -> list[str]:
    """Return the command of a node's Python: the one of its facts or of the inventory, else the system's."""
    known = task_vars.get("ansible_facts", {}).get("python", {}).get("executable")
    stated = str(known or task_vars.get("ansible_python_interpreter"))
    return [stated] if stated.startswith("/") else SYSTEM_PYTHON


def answered(script: str, said: dict[str, Any]) -> dict[str, Any]:
    """Return the task's result from a script's exit status and output, see `OnNode.ask`.

    Raises:
        AnsibleActionFail: there is no document, or it is too large.
    """
    printed, _newline, last = said["stdout"].rstrip().rpartition("\n")
    if len(last) > results.SIZE or results.count_values(last) > results.VALUES:
        raise AnsibleActionFail(f"{script} gave no answer: its document is too large")
    try:
        document = json.loads(last) if said["rc"] == 0 else None
    except (ValueError, RecursionError):
        document = None
    if _has_many(document):
        raise AnsibleActionFail(f"{script} gave no answer: a list in its document is too long")
    if not isinstance(document, dict):
        words = (said["stderr"].strip() or last).rpartition("\n")[2] or f"it exited with {said['rc']}"
        raise AnsibleActionFail(f"{script} gave no answer: {words}", result={"stderr": said["stderr"]})
    failure = document.get("failure")
    return {
        "changed": bool(document.get("changed", False)),
        "document": document,
        "output": [*printed.splitlines(), *said["stderr"].splitlines()],
        **({"failed": True, "msg": _sentence(failure)} if failure else {}),
    }


def _has_many(document: Any) -> bool:
    """Return whether a list or mapping in a document has more than `ENTRIES`, or than `TEXTS` texts."""
    rest = [document]
    while rest:
        part = rest.pop()
        values = list(part.values()) if isinstance(part, dict) else part if isinstance(part, list) else []
        other = [each for each in values if not isinstance(each, str)]
        if len(values) > (ENTRIES if other else TEXTS):
            return True
        rest += other
    return False


def _sentence(failure: Any) -> str:
    """Return a failure's message: `says`, the observation, and `do`, the remedy if there is one.

    A failure of another form becomes its JSON.
    """
    if not is_table(failure) or not failure.get("says"):
        return json.dumps(failure)
    return "; ".join(filter(None, (failure["says"], failure.get("do"))))
