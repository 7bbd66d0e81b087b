# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of the become plugin gpuprov_sudo: those of the installed Ansible's `sudo`."""

from __future__ import annotations

from textwrap import dedent

from ansible.plugins.become import sudo


class ModuleDocFragment:
    """The part of the documentation of `sudo` that begins with its options."""

    _before, _heading, _options = dedent(sudo.DOCUMENTATION).partition("\noptions:\n")
    DOCUMENTATION = "options:\n" + _options
