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
from collections.abc import Callable
from functools import wraps
from typing import Any

from ansible.errors import AnsibleError
from ansible.executor import task_executor
from ansible.plugins.action import ActionBase
from ansible.plugins.callback import CallbackBase
from ansible.plugins.strategy import StrategyBase
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
    "|python(?:_version)?|selinux(?:_python_present)?|service_mgr"
    "|ssh_host_key_(?:dsa|ecdsa|ed25519|rsa)_public(?:_keytype)?|swap[a-z]+_mb"
    "|system(?:_capabilities(?:_enforced)?|_vendor)?|uptime_seconds|user_(?:dir|gecos|gid|id|shell|uid)"
    r"|userspace_(?:architecture|bits)|virtualization_[a-z_]+)\Z"
    r"|(?:facter|ohai)_\w+\Z|(?:ansible_)?discovered_interpreter_python\Z|gather_subset\Z|module_setup\Z"
)
"""Names of facts of `ansible.builtin.setup` on Linux, and none of an option of Ansible.

Facts of network interfaces are not among them: their names are the node's choice.
"""
FOLDER = re.compile(r"[\w ./\\~+@=,:%()-]+\Z")
"""Characters of a folder for temporary files on a node: no quotes, and no ends of lines."""
FOLDER_BYTES = 255
"""Maximum size of its path. sftp takes a line of more than 2,047 bytes for several commands."""
SIZE = 1 << 20
"""Maximum number of characters of a task's answer. Ansible keeps registered results until the end of a play,
with 4 bytes for each character if one of them is rare, and outputs twice.
"""
VALUES = 1 << 17
"""Maximum number of values and of lines in the JSON of a node, before it is parsed."""
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""Ends of lines of `str.splitlines`, with which Ansible splits outputs; it keeps those of a whole run."""
COMPARED_LINES = 4000
"""Maximum number of lines of both sides of a result's diffs, as in the callback gpuprov_jsonl: the time grows
with their product, and all nodes wait.
"""


def require_release() -> None:
    """Check the release of ansible-core: with an older one a warning is all that Ansible itself gives.

    Raises:
        AnsibleError: it is too old.
    """
    if tuple(map(int, __version__.split(".")[:2])) < OLDEST:
        raise AnsibleError(
            f"ansible-core is {__version__}; expected 2.19 or later, as earlier releases take text of a node"
            " for a template; see docs/collection.md, Versions"
        )


def count_lines(text: str) -> int:
    """Return the number of ends of lines in a text."""
    return sum(map(text.count, LINE_ENDS))


def count_values(text: str) -> int:
    """Return how many values and lines the JSON in a text can have at most; each `\\u` counts as a line."""
    return sum(map(text.count, ("[", "{", ",", r"\n", r"\r", r"\f", r"\u"))) + count_lines(text)


def is_fact(name: object) -> bool:
    """Return whether a fact may be a variable."""
    return isinstance(name, str) and FACT.match(name) is not None


def without_others(choose: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return Ansible's function that chooses facts as variables, limited to those of `is_fact`."""

    @wraps(choose)
    def chosen(facts: Any) -> Any:
        return {name: value for name, value in choose(facts).items() if is_fact(name)}

    return chosen


def with_new_variables(queue: Callable[..., None]) -> Callable[..., None]:
    """Return Ansible's function that starts a task on a host; the variables of the first are computed again.

    A strategy computes them before it loads the task's action, and thus this module.
    """
    first = True

    @wraps(queue)
    def queued(strategy: Any, host: Any, task: Any, variables: Any, *rest: Any) -> None:
        nonlocal first
        if first:
            play = task._parent._play
            variables = strategy._variable_manager.get_vars(play=play, host=host, task=task)
            strategy.add_tqm_variables(variables, play=play)
            first = False
        queue(strategy, host, task, variables, *rest)

    return queued


def with_safe_folder(make: Callable[..., str]) -> Callable[..., str]:
    """Return Ansible's function that makes a folder for temporary files, with a check of its path."""

    @wraps(make)
    def made(action: Any, *rest: Any, **named: Any) -> str:
        path = make(action, *rest, **named)
        if not FOLDER.match(path) or len(path.encode(errors="surrogateescape")) > FOLDER_BYTES:
            action._connection._shell.tmpdir = None
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
StrategyBase._queue_task = with_new_variables(StrategyBase._queue_task)
ActionBase._make_tmp_path = with_safe_folder(ActionBase._make_tmp_path)
CallbackBase._get_diff = with_short_diffs(CallbackBase._get_diff)
ActionBase._parse_returned_data = without_statistics(ActionBase._parse_returned_data)
