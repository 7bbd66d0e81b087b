"""Where the collection for Ansible and the profiles are: beside an installed package, or in the checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
COLLECTION = "gpuprov/gpuprov"
"""Namespace and name, as the folders below `ansible_collections` have them."""


def collection() -> Path:
    """The collection's folder. A wheel brings it where Ansible of the same environment looks as well."""
    installed = _PACKAGE.parent / "ansible_collections" / COLLECTION
    return installed if installed.is_dir() else _PACKAGE.parent


def share(name: str) -> Path:
    """The folder `roles`, `playbooks` or `plugins` of the collection, or `inventory` with the profiles."""
    if name != "inventory":
        return collection() / name
    installed = _PACKAGE / "share" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


def link_collection(folder: Path) -> Path:
    """Lay the collection below a folder as Ansible looks for it; that folder is for ANSIBLE_COLLECTIONS_PATH.

    A checkout stands under any name. What else is installed in the collection's name is not looked at.
    """
    link = folder / "ansible_collections" / COLLECTION
    link.parent.mkdir(parents=True)
    link.symlink_to(collection())
    return folder
