# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writing and removal of files, run on a node by the action gpuprov_files.

Runs on nodes: Python 3.6 to 3.13 and its standard library. Argument: the options in
plugins/modules/gpuprov_files.yml, and `check`. Prints that module's return values, with `failure` if a
content is not valid or a file cannot be read or written.
"""

import contextlib
import json
import os
import re
import shlex
import stat
import subprocess
import sys
import tempfile
import time

from gpuprov_block import Block
from gpuprov_place import READ, Place, Refused
from gpuprov_replace import TemporaryReplacement, make_folders, read, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov_replace import Owner

OWNER = (0, 0)
"""User and group id of the files that are written, except for `keep_mode`."""
FOLDER_MODE = 0o755
REASON_MAX = 400
"""Maximum length of a validator's message in characters."""


class Invalid(Exception):
    """Content that its validator rejects.

    `said` has the validator's exit status (`rc`), `stdout` and `stderr`.
    """

    def __init__(self, reason: str, said: "dict[str, Any]") -> None:
        super().__init__(reason)
        self.said = said


def main() -> None:
    """Settle the files of the argument, and print the result as one line of JSON."""
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
    """Write, remove and restore files; return the task's result.

    All contents are validated before a file is written. Files with the right content get owner and mode only.

    Args:
        files: the options `files` of the module; those that are not `wanted` are removed, with `block` only
            the block.
        remove: further paths to remove.
        undo: path → backup to restore, or None to remove the path; as returned in `former`.
        check: change nothing, and validate nothing.

    Raises:
        Invalid: a validator rejects a content; nothing was written.
        OSError: a file cannot be read or written.
    """
    files = [{**each, "path": expanded(each["path"]), "content": each["content"].encode()} for each in files]
    wanted = [each for each in files if each["wanted"] or (each["block"] and os.path.lexists(each["path"]))]
    unwanted = [each["path"] for each in files if not each["wanted"] and not each["block"]]
    unwanted += [expanded(path) for path in remove]
    before = {each["path"]: content_of(each["path"]) for each in wanted}
    for each in wanted:
        if each["block"]:
            each["block"] = Block(each["path"], each["content"] if each["wanted"] else b"", each["replaces"])
            each["content"] = each["block"].within(before[each["path"]] or b"")
    new = [each for each in wanted if before[each["path"]] != each["content"]]
    for each in new if not check else ():
        validate(each)
    whole = [each for each in wanted if each not in new and not each["block"] and not each["keep_mode"]]
    corrected = [each["path"] for each in whole if set_owner_and_mode(each, check)]
    former = write(new) if not check else {}
    gone = {path: content_of(path) for path in unwanted if os.path.lexists(path)}
    if not check:
        for path in gone:
            os.unlink(path)
        for path, backup in undo.items():
            put_back(path, backup)
    texts = [(each["path"], before[each["path"]], each["content"]) for each in new]
    texts += [(path, content, None) for path, content in gone.items()]
    return {
        "changed": bool(new or corrected or gone or undo),
        "written": sorted({each["path"] for each in new}.union(corrected)),
        "removed": sorted(gone),
        "former": former,
        "diff": [difference(*each) for each in texts],
    }


def expanded(path: str) -> str:
    """Return a path with `~` and `$VARIABLES` expanded on the node; unknown variables stay."""
    return os.path.expanduser(os.path.expandvars(path))


def content_of(path: str) -> "bytes | None":
    """Return the content of a file; None if there is no file, or one that must not be read.

    Special files, and paths that lead through another user's link, must not be read.

    Raises:
        OSError: it is a folder, is too large or cannot be read.
    """
    try:
        return read(path, follow=True)
    except Refused:
        return None


def validate(file: "dict[str, Any]") -> None:
    """Run the validator on a temporary file with the content; nothing without a validator.

    The temporary file's name has the same suffix, on which apt depends. `%s` in the validator is its path.

    Raises:
        Invalid: the validator's exit status is not 0.
        OSError: the validator cannot be run.
    """
    if not file["validate"]:
        return
    with tempfile.NamedTemporaryFile(suffix=os.path.splitext(file["path"])[1]) as half:
        half.write(file["content"])
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
    """Return a validator's output on one line, with the file's own path, without lines of marks only.

    Args:
        half: path of the temporary file.
        path: path of the file.
    """
    lines = [line.strip() for line in text.replace(half, path).splitlines()]
    return "; ".join(line for line in lines if re.search(r"\w", line))[:REASON_MAX] or "no reason given"


def write(files: "list[dict[str, Any]]") -> "dict[str, str | None]":
    """Replace files after all new contents are in temporary files; create their folders.

    If a file cannot be replaced, those before it remain replaced.

    Returns:
        file → path of its backup, for those with `backup`; None if the file did not exist.
    """
    former = {}
    with contextlib.ExitStack() as stack:
        halves = []
        for file in files:
            make_folders(os.path.dirname(file["path"]), FOLDER_MODE)
            if file["block"]:
                halves.append(None)
                continue
            place = stack.enter_context(Place(file["path"]))
            half = TemporaryReplacement(place, file["content"], *mode_and_owner(file))
            halves.append(stack.enter_context(half))
        for file, half in zip(files, halves):
            if file["backup"]:
                former[file["path"]] = back_up(file["path"])
            if half is None:
                file["block"].put(int(file["mode"], 8), OWNER)
            else:
                half.put()
    return former


def mode_and_owner(file: "dict[str, Any]") -> "tuple[int | None, Owner | None]":
    """Return mode and owner of a file's new content; None for each if the file keeps its own.

    The file in the place of a link gets those of the link's target, whose content it may contain.
    """
    if file["keep_mode"]:
        with contextlib.suppress(Refused), Place(file["path"], follow=True) as place:
            about = place.about()
            if about is not None and os.path.islink(file["path"]):
                return stat.S_IMODE(about.st_mode) & 0o777, (about.st_uid, about.st_gid)
            if about is not None:
                return None, None
    return int(file["mode"], 8), OWNER


def back_up(path: str) -> "str | None":
    """Copy a file to a backup in its folder, named as by Ansible's modules; return the backup's path.

    It has the permissions, owner and times of the file that was read, which another user may replace
    meanwhile. It has no set-id and sticky bits. None if there is no file.
    """
    with Place(path, follow=True) as place:
        old = place.read()
    if old.about is None:
        return None
    about = old.about
    backup = "{}.{}.{}".format(path, os.getpid(), time.strftime("%Y-%m-%d@%H:%M:%S~"))
    replace(backup, old.content, about.st_mode & 0o777, (about.st_uid, about.st_gid))
    with Place(backup) as place:
        times = (about.st_atime_ns, about.st_mtime_ns)
        os.utime(place.name, ns=times, dir_fd=place.folder, follow_symlinks=False)
    return backup


def set_owner_and_mode(file: "dict[str, Any]", check: bool) -> bool:
    """Correct owner and mode of a file; return whether they were different. `check`: nothing is changed."""
    mode = int(file["mode"], 8)
    with Place(file["path"], follow=True) as place:
        handle = os.open(place.name, READ, dir_fd=place.folder)
        try:
            is_ = os.fstat(handle)
            right = (is_.st_uid, is_.st_gid, is_.st_mode & 0o7777) == (*OWNER, mode)
            if not right and not check:
                os.fchown(handle, *OWNER)
                os.fchmod(handle, mode)
        finally:
            os.close(handle)
    return not right


def put_back(path: str, backup: "str | None") -> None:
    """Restore a file from its backup, with owner and mode; without a backup (None) remove the file."""
    if backup is not None:
        os.replace(backup, path)
    elif os.path.lexists(path):
        os.unlink(path)


def difference(path: str, before: "bytes | None", after: "bytes | None") -> "dict[str, str]":
    """Return two contents of a file in the form of Ansible's `diff`.

    No content (None) becomes an empty text.
    """
    was, becomes = ((content or b"").decode(errors="replace") for content in (before, after))
    return {"before": was, "after": becomes, "before_header": path, "after_header": path}
