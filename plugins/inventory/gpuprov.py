# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventory plugin: Ansible reads a fleet.yml through the program gpuprov."""

from __future__ import annotations

DOCUMENTATION = """
name: gpuprov
short_description: Hosts, groups and variables of a fleet.yml
author: gpuprov (!UNKNOWN)
description:
  - Reads a gpuprov fleet, and its lock if there is one, by running C(gpuprov inventory list).
  - The file has C(plugin=gpuprov) (C(gpuprov.gpuprov.gpuprov) for the collection), or the plugin is enabled.
requirements:
  - the program gpuprov, next to Ansible's Python or on the PATH
options:
  plugin:
    description: Names this plugin.
    required: true
    choices: [gpuprov, gpuprov.gpuprov.gpuprov]
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin

try:
    from ansible.template import trust_as_template

    text_of = str
except ImportError:  # before ansible-core 2.19 every string is a template unless it is marked unsafe
    from ansible.utils.unsafe_proxy import AnsibleUnsafeText

    trust_as_template, text_of = str, AnsibleUnsafeText

TIMEOUT_S = 300
"""Seconds within which gpuprov has to answer."""
UNSAFE = "__ansible_unsafe"
"""Key with which gpuprov marks a string as text that is not a template."""


class InventoryModule(BaseInventoryPlugin):
    """The inventory of one fleet.yml."""

    NAME = "gpuprov.gpuprov.gpuprov"

    def verify_file(self, path: str) -> bool:
        """Return whether the file can be a fleet: it is readable and its name ends with .yml or .yaml."""
        return bool(super().verify_file(path)) and Path(path).suffix in (".yml", ".yaml")

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        """Add the fleet's groups, hosts and variables to Ansible's inventory.

        Raises:
            AnsibleParserError: gpuprov is not found, fails, or does not answer in time.
        """
        super().parse(inventory, loader, path, cache)
        answer = _listed(path)
        host_vars = answer.pop("_meta")["hostvars"]
        for name in answer:
            inventory.add_group(name)
        for name, group in answer.items():
            for child in group.get("children", ()):
                inventory.add_child(name, child)
            for host in group.get("hosts", ()):
                inventory.add_host(host, group=name)
            for key, value in group.get("vars", {}).items():
                inventory.set_variable(name, key, _trusted(value))
        for host, own in host_vars.items():
            for key, value in own.items():
                inventory.set_variable(host, key, _trusted(value))


def _trusted(value: Any) -> Any:
    """Return a variable whose strings may be templates, except those marked with `UNSAFE` as text."""
    if isinstance(value, str):
        return trust_as_template(value)
    if isinstance(value, dict):
        if set(value) == {UNSAFE}:
            return text_of(value[UNSAFE])
        return {key: _trusted(each) for key, each in value.items()}
    return [_trusted(each) for each in value] if isinstance(value, list) else value


def _listed(path: str) -> dict[str, Any]:
    """Return the document that `gpuprov inventory list` prints for a fleet.

    Raises:
        AnsibleParserError: gpuprov is not found, fails, or does not answer within `TIMEOUT_S`.
    """
    command = [_program(), "inventory", "list", "--fleet", path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise AnsibleParserError(f"{' '.join(command)} did not answer in {TIMEOUT_S} s") from None
    if done.returncode:
        raise AnsibleParserError(done.stderr.strip() or f"{' '.join(command)} exited with {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _program() -> str:
    """Return the path of gpuprov, next to this Python or else on the PATH.

    Raises:
        AnsibleParserError: it is in neither place.
    """
    beside = Path(sys.executable).with_name("gpuprov")
    found = str(beside) if beside.exists() else shutil.which("gpuprov")
    if found is None:
        raise AnsibleParserError(
            f"no program gpuprov next to {sys.executable} or on the PATH; put its folder on the PATH"
        )
    return found
