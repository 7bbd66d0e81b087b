# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action that reports whether a node is still leased to the run; see plugins/modules/gpuprov_lease.yml."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.gpuprov.gpuprov.plugins.plugin_utils import results  # noqa: F401 - for its effect
from ansible_collections.gpuprov.gpuprov.plugins.plugin_utils.leased import complaint


class ActionModule(ActionBase):
    """An action that runs only on the controller."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return as `complaint` why the node is not leased to this run.

        Empty if it is. The task does not fail for a node that is not leased.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        return {**result, "complaint": complaint(str((task_vars or {}).get("inventory_hostname", "")))}
