# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of the connection plugin gpuprov_ssh: those of the installed Ansible's `ssh`."""

from __future__ import annotations

from textwrap import dedent

from ansible.plugins.connection import ssh


class ModuleDocFragment:
    """The part of the documentation of `ssh` that begins with its options."""

    _before, _heading, _options = dedent(ssh.DOCUMENTATION).partition("\noptions:\n")
    DOCUMENTATION = "options:\n" + _options
