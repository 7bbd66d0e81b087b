# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action that fails with all objections to a node at once; see plugins/modules/gpuprov_refuse.yml."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.gpuprov.gpuprov.plugins.plugin_utils import results  # noqa: F401 - for its effect

ARGUMENTS = {
    "objections": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {"holds": {"type": "raw", "required": True}, "says": {"type": "str", "required": True}},
    }
}


class ActionModule(ActionBase):
    """An action that runs only on the controller."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Fail with the messages of all objections that hold, joined by `Also:`; succeed if none holds."""
        _result, arguments = self.validate_argument_spec(argument_spec=ARGUMENTS)
        result: dict[str, Any] = super().run(tmp, task_vars)
        objections = [each["says"].strip() for each in arguments["objections"] if boolean(each["holds"])]
        if objections:
            result.update(failed=True, msg=". Also: ".join(objections))
        return result
