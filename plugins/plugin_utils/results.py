# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits of what a node answers to Ansible itself, in all plays of a process that uses the collection.

The result of any module can have facts. Unless `inject_facts_as_vars` is off they are variables, and precede
those of the inventory and of a role's defaults: a node could set any, such as a path on the controller or
the host that the next item of a loop is run on. A node also names the folder for temporary files, which
Ansible writes into commands of sftp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from ansible import constants
from ansible.errors import AnsibleError
from ansible.executor import task_executor
from ansible.plugins.action import ActionBase
from ansible.plugins.callback import CallbackBase
from ansible.release import __version__
from ansible.vars import clean, manager

OLDEST = (2, 19)
"""Release that takes no text of a node for a template; earlier ones do with the message of an action."""
FACT = re.compile(
    "ansible_(?:all_ipv[46]_addresses|apparmor|architecture|(?:bios|board|chassis|product)_[a-z]+(?:_tag)?"
    "|cmdline|date_time|default_ipv[46]|device_links|devices|distribution(?:_[a-z_]+)?|dns|domain"
    "|(?:effective|real)_(?:group|user)_id|env|fibre_channel_wwn|fips|flags|form_factor|fqdn|hostname|hostnqn"
    "|interfaces|is_chroot|iscsi_iqn|kernel(?:_version)?|loadavg|local|locally_reachable_ips|lsb|lvm"
    "|machine(?:_id)?|mem[a-z]+_mb|mounts|nodename|os_family|pkg_mgr|proc_cmdline|processor(?:_[a-z_]+)?"
    "|python(?:_version)?|selinux(?:_python_present)?|service_mgr|ssh_host_key_[a-z0-9_]+|swap[a-z]+_mb"
    "|system(?:_capabilities(?:_enforced)?|_vendor)?|uptime_seconds|user_(?:dir|gecos|gid|id|shell|uid)"
    r"|userspace_(?:architecture|bits)|virtualization_[a-z_]+)\Z"
    r"|(?:facter|ohai)_\w+\Z|(?:ansible_)?discovered_interpreter_python\Z|gather_subset\Z|module_setup\Z"
)
"""Names of the facts of `ansible.builtin.setup` on Linux, apart from those of network interfaces."""
FOLDER = re.compile(r"[\w ./\\~+@=,:%()-]+\Z")
"""Characters of a folder for temporary files on a node: no quotes, and no ends of lines."""
FOLDER_BYTES = 255
"""Maximum size of its path. sftp takes a line of more than 2,047 bytes for several commands."""

COMPARED_LINES = 4000
"""Maximum number of lines of both sides of the diffs of a result, as in the callback gpuprov_jsonl: the time
grows with their product, and all nodes wait."""

injected = False
"""Whether variables have been computed without the facts that are left out."""


def require_release() -> None:
    """Check the release of ansible-core: with an older one a warning is all that Ansible itself gives.

    Raises:
        AnsibleError: it is too old.
    """
    if tuple(map(int, __version__.split(".")[:2])) < OLDEST:
        raise AnsibleError(
            f"ansible-core is {__version__}; expected 2.19 or later, as earlier releases take text of a node"
            " for a template: run `pip install 'ansible-core>=2.19'`"
        )


def is_fact(name: object, value: object) -> bool:
    """Return whether a fact may be a variable: one of `setup`, by its name, or a network interface."""
    if not isinstance(name, str):
        return False
    if FACT.match(name):
        return True
    device = value.get("device") if isinstance(value, Mapping) else None
    return isinstance(device, str) and name == "ansible_" + re.sub("[^A-Za-z0-9]", "_", device)


def without_others(choose: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return Ansible's function that chooses facts as variables, limited to those of `is_fact`."""

    @wraps(choose)
    def chosen(facts: Any) -> Any:
        global injected
        injected = True
        return {name: value for name, value in choose(facts).items() if is_fact(name, value)}

    return chosen


def require_no_others(variables: Mapping[str, Any]) -> None:
    """Check a task's variables for facts that are left out: those of a play's first task may be older.

    Raises:
        AnsibleError: a fact is a variable that it may not be.
    """
    facts = variables.get("ansible_facts")
    if injected or not constants.INJECT_FACTS_AS_VARS or not isinstance(facts, Mapping):
        return
    named = {each: value for name, value in facts.items() for each in (name, f"ansible_{name}")}
    wrong = sorted(
        str(name)
        for name, value in named.items()
        if name in variables and variables[name] == value and not is_fact(name, value)
    )
    if wrong:
        raise AnsibleError(
            f"facts that were gathered before are variables: {', '.join(wrong[:3])[:100]}; set"
            " inject_facts_as_vars = False in ansible.cfg, or gather facts after the first task of a role"
        )


def with_safe_folder(make: Callable[..., str]) -> Callable[..., str]:
    """Return Ansible's function that makes a folder for temporary files, with a check of its path."""

    @wraps(make)
    def made(action: Any, *rest: Any, **named: Any) -> str:
        path = make(action, *rest, **named)
        if not FOLDER.match(path) or len(path.encode(errors="surrogateescape")) > FOLDER_BYTES:
            raise AnsibleError(f"the node names a folder for temporary files that none can be: {path[:80]!r}")
        return path

    return made


def without_statistics(parse: Callable[..., Any]) -> Callable[..., Any]:
    """Return Ansible's parser of what a module prints, without `ansible_stats`, which counts for all nodes.

    A value of another form would end the play. It is a key of a dict, since ansible-core 2.21 an attribute.
    """

    @wraps(parse)
    def parsed(action: Any, *rest: Any, **named: Any) -> Any:
        result = parse(action, *rest, **named)
        if isinstance(result, dict):
            result.pop("ansible_stats", None)
        else:
            result.stats = None
        return result

    return parsed


def with_short_diffs(show: Callable[..., str]) -> Callable[..., str]:
    """Return Ansible's function that compares two texts of a node, which leaves out long ones."""

    @wraps(show)
    def shown(callback: Any, diffs: Any) -> str:
        kept, left = [], COMPARED_LINES
        for diff in diffs if isinstance(diffs, list) else [diffs]:
            sides = [diff[side] for side in ("before", "after") if side in diff]
            texts = [side if isinstance(side, str) else callback._serialize_diff(side) for side in sides]
            left -= sum(len(text.splitlines()) for text in texts)
            kept.append(diff if left >= 0 else {"prepared": f"no diff of more than {COMPARED_LINES} lines\n"})
        return show(callback, kept)

    return shown


require_release()
# Each of these modules imports the function. The executor of ansible-core before 2.21 calls it for the
# further items of a loop, later releases the manager's.
for module in (clean, manager, *[task_executor] * hasattr(task_executor, "clean_facts")):
    module.clean_facts = without_others(module.clean_facts)
ActionBase._make_tmp_path = with_safe_folder(ActionBase._make_tmp_path)
CallbackBase._get_diff = with_short_diffs(CallbackBase._get_diff)
ActionBase._parse_returned_data = without_statistics(ActionBase._parse_returned_data)
