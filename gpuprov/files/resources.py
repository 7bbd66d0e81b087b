"""Locations of the Ansible collection and the profiles: next to an installed package, or in the checkout."""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parents[1]
COLLECTION = "gpuprov/gpuprov"
"""Namespace and name of the collection: its path below `ansible_collections`."""


def collection() -> Path:
    """Return the collection's folder: where a wheel installs it for Ansible, or else the checkout.

    It contains the folders `roles`, `playbooks` and `plugins`.
    """
    installed = _PACKAGE.parent / "ansible_collections" / COLLECTION
    return installed if installed.is_dir() else _PACKAGE.parent


def share(name: str) -> Path:
    """Return the folder `roles`, `playbooks` or `plugins` of the collection, or the profiles' `inventory`.

    It is not checked whether the folder exists.
    """
    if name != "inventory":
        return collection() / name
    installed = _PACKAGE / "share" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


@cache
def module_of(plugin: str) -> Any:
    """Load a module of the collection that works without Ansible, such as `module_utils/gpuprov_place`.

    It is loaded once, under the last part of its name, so modules that it imports must be loaded before it.

    Raises:
        OSError: there is no such file.
        ImportError: it imports a module that is not loaded yet.
    """
    name = plugin.rpartition("/")[2]
    if name in sys.modules:
        return sys.modules[name]
    spec: Any = importlib.util.spec_from_file_location(name, share("plugins") / f"{plugin}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def link_collection(folder: Path) -> Path:
    """Link the collection into a folder in Ansible's layout; return the folder for ANSIBLE_COLLECTIONS_PATH.

    The link is needed because a checkout may have any name. Other installed copies of the collection are not
    used.

    Args:
        folder: a folder without `ansible_collections/gpuprov`; it is created if it is missing.
    """
    link = folder / "ansible_collections" / COLLECTION
    link.parent.mkdir(parents=True)
    link.symlink_to(collection())
    return folder


def ansible_environment(scratch: Path) -> dict[str, str]:
    """Return the operator's environment for a program of Ansible, without the operator's settings of Ansible.

    No variable `ANSIBLE_*` remains, such as one that names a password of ansible-vault, and no ansible.cfg is
    read: an empty one is created in `scratch`.
    """
    config = scratch / "ansible.cfg"
    config.touch()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    return {**inherited, "ANSIBLE_CONFIG": str(config)}
