# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Vars plugin: group_vars and host_vars of another's inventory, in its folder and not encrypted.

Ansible joins `group_vars/` and a group's name, and expands `~` and `$NAME` in paths, so names in an inventory
and links in its folder could lead to any file of the user who reads it.
"""

from __future__ import annotations

DOCUMENTATION = """
name: gpuprov_import
short_description: group_vars and host_vars of an inventory that is not trusted
author: gpuprov (!UNKNOWN)
description:
  - Reads the same files as P(ansible.builtin.host_group_vars#vars), but fails at a file outside of the
    inventory's folder.
  - Reads no file for names with C(/) or C($) or a leading C(.), and no file that ansible-vault encrypted.
options:
  stage:
    ini:
      - key: stage
        section: vars_gpuprov_import
extends_documentation_fragment:
  - vars_plugin_staging
"""

import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleParserError
from ansible.plugins.vars import host_group_vars

ENCRYPTED = b"$ANSIBLE_VAULT"


class VarsModule(host_group_vars.VarsModule):  # type: ignore[misc]  # Ansible has no types
    """The plugin; Ansible finds it by this name."""

    REQUIRES_ENABLED = True

    def get_vars(self, loader: Any, path: str, entities: Any, cache: bool = True) -> Any:
        """Return the variables of hosts and groups from the files next to an inventory.

        Raises:
            AnsibleParserError: a file is outside of the inventory's folder, or cannot be read.
        """
        return super().get_vars(ConfinedLoader(loader, path), path, entities, cache)


class ConfinedLoader:
    """Ansible's loader of files, whose search for files of variables stays in one folder."""

    def __init__(self, loader: Any, folder: str) -> None:
        """Keep Ansible's loader, and the real path of the folder."""
        self._loader, self._folder = loader, os.path.realpath(folder)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of Ansible's loader."""
        return getattr(self._loader, name)

    def find_vars_files(self, path: str, name: str, *rest: Any, **named: Any) -> list[str]:
        """Return the files of variables for a name that are not encrypted.

        Raises:
            AnsibleParserError: one is outside of the folder.
        """
        if name.startswith(".") or "/" in name or "$" in name:
            return []
        found = self._loader.find_vars_files(path, name, *rest, **named)
        return [file for file in found if not self._is_encrypted(file)]

    def _is_encrypted(self, file: str) -> bool:
        """Return whether ansible-vault encrypted a file as a whole; AnsibleParserError if it is outside."""
        place = os.path.realpath(self._loader.path_dwim(file))  # the path that Ansible opens
        if os.path.commonpath([place, self._folder]) != self._folder:
            raise AnsibleParserError(f"{file} is outside of {self._folder}")
        with Path(place).open("rb") as opened:
            return opened.read(len(ENCRYPTED)) == ENCRYPTED
