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
NAMED_AT_MOST = 3


def specifications() -> "dict[str, dict[str, list[str]]]":
    """Return file → `missing`, the first host paths in it that do not exist, and `versions` of libraries.

    Files without devices of NVIDIA, and those that cannot be read, are left out.
    """
    found = {}  # type: dict[str, dict[str, list[str]]]
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
                found[folder + "/" + name] = {"missing": missing[:NAMED_AT_MOST], "versions": versions}
    return found


def _text(path: str) -> str:
    """Return the text of a file up to `SIZE` bytes; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(SIZE).decode("utf-8", "replace")
    except OSError:
        return ""
