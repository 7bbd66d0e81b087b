#!/usr/bin/python
# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes and removes the files of a role in one task: each task more costs every node half a second."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuprov_files
short_description: Write and remove whole files
author: gpuprov (!UNKNOWN)
description:
  - Writes files that belong to root, and removes others; all of them in one task.
  - Each content is validated before the first file is changed, and each file is replaced atomically.
  - Missing folders are created with mode 0755.
options:
  files:
    description: Files that must be there, with their content.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Path of the file.
        type: path
        required: true
      content:
        description: Its whole content.
        type: str
        required: true
      mode:
        description: Its mode, as octal digits.
        type: str
        default: "0644"
      backup:
        description: Whether the former file is kept beside it.
        type: bool
        default: false
      validate:
        description: A command that must succeed; V(%s) stands for a file with the new content.
        type: str
      wanted:
        description: Whether the file must exist; if not, it is removed.
        type: bool
        default: true
  remove:
    description: Other files that must not be there.
    type: list
    elements: path
    default: []
  undo:
    description: RV(former) of an earlier task, whose files are restored.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Reports what would change, without validating contents; programs for that may come later.
  diff_mode:
    support: full
    description: Shows each file before and after.
"""

EXAMPLES = r"""
- name: Write the unit that sets clocks
  gpuprov.gpuprov.gpuprov_files:
    files:
      - path: /etc/systemd/system/gpuprov-gpu-clocks.service
        content: "{{ lookup('ansible.builtin.template', 'gpu-clocks.service.j2') }}"
"""

RETURN = r"""
written:
  description: Paths of files that were changed or made.
  type: list
  elements: str
  returned: success
removed:
  description: Paths of files that were removed.
  type: list
  elements: str
  returned: success
former:
  description: Changed file with O(files[].backup) to the path of its former content; null without one.
  type: dict
  returned: success
"""

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

ARGUMENTS = {
    "files": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "path", "required": True},
            "content": {"type": "str", "required": True},
            "mode": {"type": "str", "default": "0644"},
            "backup": {"type": "bool", "default": False},
            "validate": {"type": "str"},
            "wanted": {"type": "bool", "default": True},
        },
    },
    "remove": {"type": "list", "elements": "path", "default": []},
    "undo": {"type": "dict", "default": {}},
}
OWNER = "root"
FOLDER_MODE = 0o755
REASON_MAX = 400


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        module.exit_json(**settle(module))
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")


def settle(module: AnsibleModule) -> dict[str, Any]:
    """Make it so; what the task answers."""
    wanted = [each for each in module.params["files"] if each["wanted"]]
    unwanted = [each["path"] for each in module.params["files"] if not each["wanted"]]
    before = {each["path"]: read(Path(each["path"])) for each in wanted}
    new = [each for each in wanted if before[each["path"]] != each["content"].encode()]
    former = {} if module.check_mode else write(module, new)
    allowed = [each["path"] for each in wanted if allow(module, each)]
    gone = {path: read(Path(path)) for path in unwanted + module.params["remove"] if os.path.lexists(path)}
    if not module.check_mode:
        for path in gone:
            Path(path).unlink()
        for path, backup in module.params["undo"].items():
            put_back(Path(path), backup)
    texts = [(each["path"], before[each["path"]], each["content"].encode()) for each in new]
    texts += [(path, content, None) for path, content in gone.items()]
    return {
        "changed": bool(new or allowed or gone or module.params["undo"]),
        "written": sorted({each["path"] for each in new}.union(allowed)),
        "removed": sorted(gone),
        "former": former,
        "diff": [difference(*each) for each in texts],
    }


def read(path: Path) -> bytes | None:
    """What a file says, if there is one."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def write(module: AnsibleModule, files: list[dict[str, Any]]) -> dict[str, str | None]:
    """Try all, then replace them; where the former ones are that are kept, by path."""
    halves = [half_written(module, each) for each in files]
    former = {}
    for file, half in zip(files, halves):  # noqa: B905 - the node's Python may be 3.9
        path = file["path"]
        make_folder(Path(path).parent)
        if file["backup"]:
            former[path] = module.backup_local(path) or None
        module.atomic_move(half, path)
    return former


def half_written(module: AnsibleModule, file: dict[str, Any]) -> str:
    """The content in a file of its own, tried if that can be. Its name ends alike: apt goes by that."""
    descriptor, half = tempfile.mkstemp(dir=module.tmpdir, suffix=Path(file["path"]).suffix)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(file["content"].encode())
    if file["validate"]:
        status, output, errors = module.run_command(file["validate"] % half)
        if status:
            said = {"rc": status, "stdout": output, "stderr": errors}
            reason = complaint(errors or output, half, file["path"])
            module.fail_json(msg=f"{file['path']} would not be valid: {reason}", **said)
    return half


def complaint(text: str, half: str, path: str) -> str:
    """What a validator says, on one line and of the file's own path; marks below a line say nothing alone."""
    lines = [line.strip() for line in text.replace(half, path).splitlines()]
    return "; ".join(line for line in lines if re.search(r"\w", line))[:REASON_MAX] or "no reason given"


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing, whatever the umask is."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir()
        path.chmod(FOLDER_MODE)


def allow(module: AnsibleModule, file: dict[str, Any]) -> bool:
    """Have a file belong to root and its mode be right; whether something else was so."""
    if not os.path.lexists(file["path"]):
        return False
    stated = {"owner": OWNER, "group": OWNER, "mode": file["mode"]}
    wanted = module.load_file_common_arguments(stated, path=file["path"])
    return bool(module.set_fs_attributes_if_different(wanted, changed=False))


def put_back(path: Path, backup: str | None) -> None:
    """Have a file be what it was, its owner and mode too."""
    if backup is not None:
        Path(backup).replace(path)
    elif os.path.lexists(path):
        path.unlink()


def difference(path: str, before: bytes | None, after: bytes | None) -> dict[str, str]:
    """Two states of a file as Ansible shows them."""
    was, becomes = ((content or b"").decode(errors="replace") for content in (before, after))
    return {"before": was, "after": becomes, "before_header": path, "after_header": path}


if __name__ == "__main__":
    main()
