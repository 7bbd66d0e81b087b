# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CDI specifications of NVIDIA's devices, compared with the node. Runs on nodes: Python 3.6 or newer."""

import os
import re

FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""Folders in which container engines look (CDI specification, "CDI JSON definition")."""
SIZE = 4 * 1024 * 1024
PATH = re.compile(r"(?<![A-Za-z])(?:hostPath|path)[\"']?[ \t]*:[ \t]*[\"']?(/[^\"'\s,}]*)")
LIBRARY = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.(\d+\.\d+(?:\.\d+)?)")
ALL = re.compile(r"(?<![A-Za-z])name[\"']?[ \t]*:[ \t]*[\"']?all(?![A-Za-z])")
"""The device nvidia.com/gpu=all, which contains every GPU."""
GPU = re.compile(r"/dev/nvidia(\d{1,4})(?!\d)")
READABLE = 0o004
NAMED_AT_MOST = 3

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def specifications() -> "dict[str, dict[str, Any]]":
    """Return file → `missing` host paths in it, `versions` of libraries, number of `gpus`, and `private`.

    `missing` has the first paths that do not exist, and `versions` the first versions. `gpus` is 0 without
    the device nvidia.com/gpu=all. Users cannot read a `private` file. Files without devices of NVIDIA, and
    unreadable ones, are left out.
    """
    found = {}  # type: dict[str, dict[str, Any]]
    for folder in FOLDERS:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            text = _text(folder + "/" + name) if name.endswith((".yaml", ".yml", ".json")) else ""
            if "nvidia.com/" in text:
                missing = [path for path in sorted(set(PATH.findall(text))) if not os.path.exists(path)]
                versions = sorted(set(LIBRARY.findall(text)))
                found[folder + "/" + name] = {
                    "missing": missing[:NAMED_AT_MOST],
                    "versions": versions[:NAMED_AT_MOST],
                    "gpus": len(set(GPU.findall(text))) if ALL.search(text) else 0,
                    "private": not os.stat(folder + "/" + name).st_mode & READABLE,
                }
    return found


def _text(path: str) -> str:
    """Return the text of a file up to `SIZE` bytes; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(SIZE).decode("utf-8", "replace")
    except OSError:
        return ""
