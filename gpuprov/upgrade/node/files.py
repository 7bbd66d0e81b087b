"""Managed files and units of a node: their record, and their restoration."""

import base64
import glob
import os
import re

from gpuprov_replace import make_folders, replace, replace_link

from gpuprov.probe.node.base import Failed, run_anyway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Files = dict[str, dict[str, Any]]
    Units = dict[str, str]

READ_LIMIT = 1024 * 1024
"""Maximum size of a managed file in bytes."""
SWITCHED = {"enabled": "enable", "disabled": "disable"}
"""State by `systemctl is-enabled` → command that sets it; other states (`static`) are not restored."""


def files(patterns: "list[str]", excepted: str) -> "Files":
    """Return path → content (base64), mode and owner of every file that matches (no folder may match); for
    links the target.

    Args:
        patterns: patterns of paths, as for glob.
        excepted: regular expression of paths that are left out.

    Raises:
        Failed: a file is larger than `READ_LIMIT`.
    """
    paths = {path for pattern in patterns for path in glob.glob(pattern)}
    return {path: _file(path) for path in sorted(paths) if not re.search(excepted, path)}


def _file(path: str) -> "dict[str, Any]":
    """Return content (base64), mode and owner of a file, or a link's target.

    Raises:
        Failed: it is larger than `READ_LIMIT`.
    """
    if os.path.islink(path):
        return {"link": os.readlink(path)}
    about = os.stat(path)
    if about.st_size > READ_LIMIT:
        raise Failed(f"{path} is larger than a managed file can be")
    with open(path, "rb") as file:
        content = base64.b64encode(file.read()).decode()
    return {"content": content, "mode": about.st_mode & 0o7777, "owner": [about.st_uid, about.st_gid]}


def put_back(wanted: "Files", patterns: "list[str]", excepted: str) -> "list[str]":
    """Restore content, mode and owner of managed files, and remove others that match; return changed paths.

    Args:
        wanted: the record, from `files`.
        patterns, excepted: as for `files`.

    Raises:
        Failed: a file is larger than `READ_LIMIT`; nothing was changed.
    """
    now = files(patterns, excepted)
    changed = sorted(path for path in set(now) | set(wanted) if now.get(path) != wanted.get(path))
    for path in changed:
        if path not in wanted:
            os.unlink(path)
            continue
        make_folders(os.path.dirname(path))
        _write(path, wanted[path])
    return changed


def _write(path: str, wanted: "dict[str, Any]") -> None:
    """Write a file or link from its record, see `files`."""
    if "link" in wanted:
        replace_link(path, wanted["link"])
    else:
        owner = (wanted["owner"][0], wanted["owner"][1])
        replace(path, base64.b64decode(wanted["content"]), wanted["mode"], owner)


def units(names: "list[str]") -> "Units":
    """Return unit → its state by `systemctl is-enabled`; "" for an unknown unit."""
    return {name: run_anyway("systemctl", "is-enabled", name)[1].strip() for name in names}


def restore_units(wanted: "Units") -> "list[str]":
    """Enable and disable units as recorded, without starting or stopping them; return those that changed.

    systemd reads its files again first. Masked ones are unmasked before. Units with another recorded state
    are left as they are.

    Raises:
        Failed: systemctl fails.
    """
    run_anyway("systemctl", "daemon-reload", seconds=60)
    now = units(sorted(wanted))
    changed = [name for name in sorted(wanted) if wanted[name] in SWITCHED and now[name] != wanted[name]]
    for name in changed:
        if now[name].startswith("masked"):
            run_anyway("systemctl", "unmask", name, seconds=60)
        code, _, err = run_anyway("systemctl", SWITCHED[wanted[name]], name, seconds=60)
        if code != 0:
            raise Failed(f"systemctl {SWITCHED[wanted[name]]} {name}: {err.strip()[-200:]}")
    return changed
