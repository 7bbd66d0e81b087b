"""Record of the files of held packages, with which drift compares them; prints one JSON document.

Runs on the node, with the modules of plugins/module_utils. Argument:
`{"packages": [name, …], "check": false}`.

    {"differing": ["libcuda1 /usr/lib/x86_64-linux-gnu/libcuda.so.535.309.01 was changed"], "changed": false}

The record is not written in check mode. A package with a differing file, which drift and verify report, keeps
its former record, or has none. Only root can read the record.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gpuprov_package_files as files
from gpuprov_replace import make_folders, read, replace


def main() -> None:
    """Record the files of the packages again, unless in check mode; print those that differ from the last
    record as JSON, and whether the record changed.
    """
    question = json.loads(sys.argv[1])
    rows, text = renewed(sorted(question["packages"]))
    changed = not question["check"] and remember(text)
    json.dump({"differing": [" ".join(row) for row in rows], "changed": changed}, sys.stdout)


def renewed(packages: list[str]) -> tuple[list[files.Row], str]:
    """Return the differing files, and the text of a new record.

    Packages that have no record yet, or whose files have new times, are compared with their own checksums.
    """
    _folder, known = files.record()
    rows, suspects, texts = files.differing(packages), [], {}
    for found in files.listed(packages):
        before = known.get(found.name)
        if before and (before.stamp, before.digest) == (found.stamp, found.digest):
            text = before.text
        else:
            text = "".join(files.line_of(path) for path in found.paths)
            suspects += to_read(found)
        texts[found.name] = f"# {found.name} {found.stamp} {found.digest} {found.plain}\n{text}"
    rows = sorted({*rows, *files.other_content(suspects)})
    for name in {row[0] for row in rows}:
        texts[name] = f"# {name} {' '.join(known[name][:3])}\n{known[name].text}" if name in known else ""
    return rows, f"@ {files.lists_inode()}\n{''.join(texts.values())}"


def to_read(found: files.Listed) -> list[files.Suspect]:
    """Return the files of a package that has no record to compare them with."""
    sums = files.sums_of(found)
    return [
        files.Suspect(found.name, path, size_of(path), sums[path], later=False)
        for path in found.paths
        if sums.get(path)
    ]


def size_of(path: str) -> int:
    """Return the size of a file in bytes, 0 of one that is missing."""
    try:
        return Path(path).lstat().st_size
    except OSError:
        return 0


def remember(text: str) -> bool:
    """Write the record; return whether it was another one."""
    content = text.encode("utf-8", "surrogateescape")
    make_folders(files.RECORD.rpartition("/")[0])
    if read(files.RECORD) == content:
        return False
    replace(files.RECORD, content, 0o600)
    return True


if __name__ == "__main__":
    main()
