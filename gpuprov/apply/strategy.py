"""Strategy plugin of Ansible: Mitogen's if the operator requests it, otherwise Ansible's own.

Mitogen keeps one Python process on each node and runs every module in it; Ansible starts one for each task
and sends the module with it. The effect on a node is the same. Being installed is no request: Mitogen routes
the number of a context to the node that claims it first, so that a node can answer for another one, and its
own connections do not limit the size of an answer (SECURITY.md).
"""

from __future__ import annotations

import logging
import os
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from packaging.version import Version

LOG = logging.getLogger(__name__)
REQUEST = "GPUPROV_MITOGEN"
"""The variable by which the operator requests Mitogen, with the value 1."""
OLDEST = Version("0.3.54")
CORES = (Version("2.19"), Version("2.22"))
"""Releases of ansible-core that `OLDEST` supports: at least the first, below the second."""


def settings() -> dict[str, str]:
    """Return variables that make ansible-playbook use Mitogen; empty if it is not requested, or cannot be
    used, which is logged as a warning.
    """
    if os.environ.get(REQUEST) != "1":
        LOG.debug("tasks run with Ansible's own strategy: Mitogen is not requested by %s=1", REQUEST)
        return {}
    found = find_spec("ansible_mitogen")
    refusal = unfit() if found and found.origin else "Mitogen is not installed"
    if refusal or not found or not found.origin:
        LOG.warning("tasks run with Ansible's own strategy: %s", refusal)
        return {}
    LOG.debug("tasks run with Mitogen's strategy")
    plugins = Path(found.origin).parent / "plugins/strategy"
    return {
        "ANSIBLE_STRATEGY": "mitogen_linear",
        "ANSIBLE_STRATEGY_PLUGINS": str(plugins),
        # The only names that Mitogen knows.
        "ANSIBLE_TRANSPORT": "ssh",
        "ANSIBLE_BECOME_METHOD": "sudo",
    }


def unfit() -> str:
    """Return the reason why the installed Mitogen does not fit the ansible-core; empty if it does."""
    try:
        mitogen, core = (Version(version(name)) for name in ("mitogen", "ansible-core"))
    except PackageNotFoundError as error:
        return f"{error.name} is not installed as a package"
    if mitogen < OLDEST:
        command = f"pip install --only-binary=:all: 'mitogen>={OLDEST}'"
        return f"Mitogen {mitogen} is installed, and {OLDEST} is needed: {command}"
    if not CORES[0] <= core < CORES[1]:
        return f"ansible-core {core} is installed, and Mitogen is tested with {CORES[0]} up to {CORES[1]}"
    return ""
