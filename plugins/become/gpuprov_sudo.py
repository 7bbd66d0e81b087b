# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Become plugin: Ansible's `sudo`, also for sudo-rs, the sudo of Ubuntu 26.04.

sudo-rs prints `[sudo: PROMPT] Password:` where sudo prints `PROMPT`, and has other messages for a wrong
password.
"""

from __future__ import annotations

DOCUMENTATION = """
name: gpuprov_sudo
short_description: sudo and sudo-rs
author: gpuprov (!UNKNOWN)
description:
  - Becomes another user in the same way as P(ansible.builtin.sudo#become), and has the same options.
  - Also recognizes the password prompt and the messages of sudo-rs.
extends_documentation_fragment:
  - gpuprov.gpuprov.gpuprov_sudo
"""

from ansible.plugins.become import sudo


class BecomeModule(sudo.BecomeModule):  # type: ignore[misc]  # Ansible has no types
    """The plugin; Ansible finds it by this name."""

    fail = (*sudo.BecomeModule.fail, "Authentication failed, try again")
    missing = (*sudo.BecomeModule.missing, "interactive authentication is required")

    def check_password_prompt(self, b_output: bytes) -> bool:
        """Return whether a line contains the prompt, which has a random key."""
        return bool(self.prompt) and self.prompt.encode() in b_output
