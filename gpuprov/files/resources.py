"""Locations of the Ansible collection and the profiles: next to an installed package, or in the checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
COLLECTION = "gpuprov/gpuprov"
"""Namespace and name of the collection: its path below `ansible_collections`."""


def collection() -> Path:
    """Return the collection's folder. A wheel installs it where Ansible of the same environment finds it."""
    installed = _PACKAGE.parent / "ansible_collections" / COLLECTION
    return installed if installed.is_dir() else _PACKAGE.parent


def share(name: str) -> Path:
    """Return the folder `roles`, `playbooks` or `plugins` of the collection, or the profiles' `inventory`."""
    if name != "inventory":
        return collection() / name
    installed = _PACKAGE / "share" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


def link_collection(folder: Path) -> Path:
    """Link the collection into a folder in Ansible's layout; return the folder for ANSIBLE_COLLECTIONS_PATH.

    The link is needed because a checkout may have any name. Other installed copies of the collection are not
    used.
    """
    link = folder / "ansible_collections" / COLLECTION
    link.parent.mkdir(parents=True)
    link.symlink_to(collection())
    return folder
