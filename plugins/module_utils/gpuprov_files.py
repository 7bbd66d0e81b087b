# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes and removes files: what the action gpuprov_files runs on a node.

Runs there: Python 3.6 to 3.13 and its standard library. Argument: what plugins/modules/gpuprov_files.yml has,
and `check`. Answers what that returns, with `failure` where a content is not valid or a file cannot be had.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OWNER = (0, 0)
FOLDER_MODE = 0o755
REASON_MAX = 400


class Invalid(Exception):
    """A content that its validator does not like; `said` is the validator's."""

    def __init__(self, reason: str, said: "dict[str, Any]") -> None:
        super().__init__(reason)
        self.said = said


def main() -> None:
    """Print the document."""
    try:
        document = settle(**json.loads(sys.argv[1]))
    except Invalid as error:
        document = {"failure": {"says": str(error)}, **error.said}
    except OSError as error:
        document = {"failure": {"says": f"{error.filename}: {error.strerror}"}}
    sys.stdout.write("\n" + json.dumps(document) + "\n")


def settle(
    files: "list[dict[str, Any]]", remove: "list[str]", undo: "dict[str, str | None]", check: bool
) -> "dict[str, Any]":
    """Make it so; what the task answers."""
    files = [{**each, "path": expanded(each["path"])} for each in files]
    wanted = [each for each in files if each["wanted"]]
    unwanted = [each["path"] for each in files if not each["wanted"]] + [expanded(path) for path in remove]
    before = {each["path"]: read(each["path"]) for each in wanted}
    new = [each for each in wanted if before[each["path"]] != each["content"].encode()]
    for each in new if not check else ():
        validate(each)
    allowed = [each["path"] for each in wanted if each not in new and allow(each, check)]
    former = write(new) if not check else {}
    gone = {path: read(path) for path in unwanted if os.path.lexists(path)}
    if not check:
        for path in gone:
            os.unlink(path)
        for path, backup in undo.items():
            put_back(path, backup)
    texts = [(each["path"], before[each["path"]], each["content"].encode()) for each in new]
    texts += [(path, content, None) for path, content in gone.items()]
    return {
        "changed": bool(new or allowed or gone or undo),
        "written": sorted({each["path"] for each in new}.union(allowed)),
        "removed": sorted(gone),
        "former": former,
        "diff": [difference(*each) for each in texts],
    }


def expanded(path: str) -> str:
    """A path as a shell there reads it."""
    return os.path.expanduser(os.path.expandvars(path))


def read(path: str) -> "bytes | None":
    """What a file says, if there is one."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def validate(file: "dict[str, Any]") -> None:
    """Try a content in a file of its own. Its name ends alike: apt goes by that.

    Raises:
        Invalid: the validator says so.
    """
    if not file["validate"]:
        return
    with tempfile.NamedTemporaryFile(suffix=os.path.splitext(file["path"])[1]) as half:
        half.write(file["content"].encode())
        half.flush()
        done = subprocess.run(  # noqa: UP022 - Python 3.6
            shlex.split(file["validate"] % half.name),
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    if done.returncode:
        output, errors = (each.decode(errors="replace") for each in (done.stdout, done.stderr))
        reason = complaint(errors or output, half.name, file["path"])
        said = {"rc": done.returncode, "stdout": output, "stderr": errors}
        raise Invalid("{} would not be valid: {}".format(file["path"], reason), said)


def complaint(text: str, half: str, path: str) -> str:
    """What a validator says, on one line and of the file's own path; marks below a line say nothing alone."""
    lines = [line.strip() for line in text.replace(half, path).splitlines()]
    return "; ".join(line for line in lines if re.search(r"\w", line))[:REASON_MAX] or "no reason given"


def write(files: "list[dict[str, Any]]") -> "dict[str, str | None]":
    """Replace files; where the former ones are that are kept, by path."""
    halves = [(each, half_written(each)) for each in files]
    former = {}
    for file, half in halves:
        if file["backup"]:
            former[file["path"]] = kept(file["path"])
        os.replace(half, file["path"])
    return former


def half_written(file: "dict[str, Any]") -> str:
    """The content beside the file that it replaces, with its owner and mode."""
    folder = os.path.dirname(file["path"])
    make_folder(folder)
    descriptor, half = tempfile.mkstemp(prefix=".gpuprov-", dir=folder)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(file["content"].encode())
    allow({**file, "path": half}, check=False)
    return half


def make_folder(path: str) -> None:
    """Make a folder and those above it that are missing, whatever the umask is."""
    if not os.path.isdir(path):
        make_folder(os.path.dirname(path))
        os.mkdir(path)
        os.chmod(path, FOLDER_MODE)


def kept(path: str) -> "str | None":
    """A copy beside a file, named as Ansible's own modules name it."""
    if not os.path.exists(path):
        return None
    backup = "{}.{}.{}".format(path, os.getpid(), time.strftime("%Y-%m-%d@%H:%M:%S~"))
    shutil.copy2(path, backup)
    owner = os.stat(path)
    os.chown(backup, owner.st_uid, owner.st_gid)
    return backup


def allow(file: "dict[str, Any]", check: bool) -> bool:
    """Have a file belong to root and its mode be right; whether something else was so."""
    path, mode = file["path"], int(file["mode"], 8)
    is_ = os.stat(path)
    right = (is_.st_uid, is_.st_gid, is_.st_mode & 0o7777) == (*OWNER, mode)
    if not right and not check:
        os.chown(path, *OWNER)
        os.chmod(path, mode)
    return not right


def put_back(path: str, backup: "str | None") -> None:
    """Have a file be what it was, its owner and mode too."""
    if backup is not None:
        os.replace(backup, path)
    elif os.path.lexists(path):
        os.unlink(path)


def difference(path: str, before: "bytes | None", after: "bytes | None") -> "dict[str, str]":
    """Two states of a file as Ansible shows them."""
    was, becomes = ((content or b"").decode(errors="replace") for content in (before, after))
    return {"before": was, "after": becomes, "before_header": path, "after_header": path}
