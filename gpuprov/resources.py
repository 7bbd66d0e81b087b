"""Where the roles, playbooks, plugins and profiles are: inside an installed wheel, or in the checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


def share(name: str) -> Path:
    """The folder `roles`, `playbooks`, `plugins` or `inventory`."""
    installed = _PACKAGE / "share" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name
