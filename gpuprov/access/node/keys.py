"""Edits authorized_keys of an account; shell scripts call it as `edit_keys`.

    add FILE UID:GID LINE                append gpuprov's line; print `made PATH` for each created path
    remove FILE KEY [MADE...]            remove gpuprov's line with that key, and created paths if empty
    authorize FILE UID:GID LOGIN KEY...  authorize public keys; print `changed …` for each change

The exit code is 4 on failure; then the last line on standard error is the reason, and the file is unchanged.
"""

import os
import re
import stat
import sys

from gpuprov_lines import edit, edit_lines
from gpuprov_place import Place, readable
from gpuprov_replace import make_folders, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Owner = tuple[int, int]

CANNOT = 4
FOLDER_MODE = 0o700
KEY = re.compile(rb"[A-Za-z0-9+/]{32,}={0,2}\Z")
SHUT_OUT = b"command=\"echo 'Please login as the user"
"""Start of the options that cloud-init puts before a key of root (`disable_root_opts`)."""


def main(_question: "Any") -> None:
    """Run the command line.

    After an error print its reason and exit with `CANNOT`. The question is not used.
    """
    acts: dict[str, Callable[..., None]] = {"add": add, "remove": remove, "authorize": authorize}
    act, *words = sys.argv[1:]
    try:
        acts[act](*words)
    except OSError as error:
        sys.stderr.write(f"{error.filename or words[0]}: {error.strerror}\n")
        sys.exit(CANNOT)
    except ValueError as error:
        sys.stderr.write(f"{words[0]}: {error}\n")
        sys.exit(CANNOT)


def add(file: str, owner: str, line: str) -> None:
    """Append gpuprov's line, in place of an earlier one with the same key.

    Print `made PATH` for each created path. Folder and file are created if they are missing; after a failure
    the created folders are removed.

    Args:
        owner: `UID:GID` of a new file or folder.
        line: `restrict,from="…" TYPE KEY gpuprov`.

    Raises:
        OSError: the file cannot be edited; it is unchanged.
        ValueError: the line has no key.
    """
    ours = line_matcher(os.fsencode(line).split()[-2])
    made = folder_of(file, parse_owner(owner))
    try:
        new = read(file, follow=True) is None
        edit_lines(file, ours, [os.fsencode(line)], owner=parse_owner(owner))
    except OSError:
        for path in reversed(made):
            os.rmdir(path)
        raise
    sys.stdout.write("".join(f"made {each}\n" for each in made + [file] * new))


def remove(file: str, key: str, *made: str) -> None:
    """Remove gpuprov's line with a key, then the created paths in the stated order, if they are empty.

    A missing file is no error.

    Args:
        key: base64 of the public key.
        made: paths that `add` created.

    Raises:
        OSError: the file cannot be edited; it is unchanged.
        ValueError: it is not a key.
    """
    if os.path.exists(file):
        edit_lines(file, line_matcher(os.fsencode(key)))
    for path in made:
        with Place(path) as place:
            about = place.about()
            if about is not None and stat.S_ISDIR(about.st_mode):
                if not os.listdir(path):
                    os.rmdir(place.name, dir_fd=place.folder)
            elif about is not None and stat.S_ISREG(about.st_mode) and not about.st_size:
                os.unlink(place.name, dir_fd=place.folder)


def authorize(file: str, owner: str, login: str, *keys: str) -> None:
    """Authorize those public keys that the file lacks, and remove cloud-init's line that rejects them.

    Print `changed …` for each change. A missing folder or file is created.

    Args:
        owner: `UID:GID` of a new file or folder.
        login: name of the user, for the messages.

    Raises:
        OSError: the file cannot be edited; it is unchanged.
        ValueError: a text is not a public key.
    """
    wanted = {blob_of(key): os.fsencode(key) for key in keys}
    said = []  # type: list[str]

    def turned_away(line: bytes) -> bool:
        """Return whether cloud-init rejects one of the keys by this line."""
        return SHUT_OUT in line and bool(set(line.split()) & set(wanted))

    def change(lines: "list[bytes]") -> "list[bytes]":
        """Return the lines without rejections of the keys, followed by the keys that are missing."""
        kept = [line for line in lines if not turned_away(line)]
        there = {word for line in kept if not line.lstrip().startswith(b"#") for word in line.split()}
        new = [key for blob, key in wanted.items() if blob not in there]
        said[:] = [f"cloud-init's line that rejected logins as {login} removed"] * (len(kept) < len(lines))
        said.extend(f"key {os.fsdecode(key.split()[-1])} may log in as {login}" for key in new)
        return kept + new

    folder_of(file, parse_owner(owner))
    edit(file, change, turned_away, owner=parse_owner(owner))
    sys.stdout.write("".join(f"changed {each}\n" for each in said))


def blob_of(key: str) -> bytes:
    """Return the base64 of a public key, `TYPE BASE64 [COMMENT]`.

    Raises:
        ValueError: it is not a public key.
    """
    words = os.fsencode(key).split()
    if len(words) < 2 or b"\n" in os.fsencode(key) or not KEY.match(words[1]):
        raise ValueError(f"{key[:80]!r} is not a public key")
    return words[1]


def line_matcher(key: bytes) -> "Any":
    """Return a function that checks whether a line of authorized_keys is gpuprov's and has that key.

    Raises:
        ValueError: it is not a key; a part of a key could match lines of others.
    """
    if not KEY.match(key):
        raise ValueError("the key to add or to remove is not base64")
    end = b" " + key + b" gpuprov"
    return lambda line: line.startswith(b'restrict,from="') and line.endswith(end)


def parse_owner(owner: str) -> "Owner":
    """Return the numbers of `UID:GID`; ValueError for another text."""
    uid, gid = owner.split(":")
    return int(uid), int(gid)


def folder_of(file: str, owner: "Owner") -> "list[str]":
    """Create the folder of a file of keys with mode 0700; return the created paths, the outermost first.

    An empty folder that a killed process left with root as its owner gets the right owner.
    """
    folder = os.path.dirname(file)
    made = make_folders(folder, FOLDER_MODE, owner)
    if not made and owner[0]:
        with Place(os.path.join(folder, "x"), follow=True) as place:
            about = os.fstat(place.folder)
            left = (about.st_uid, stat.S_IMODE(about.st_mode)) == (0, FOLDER_MODE)
            if left:
                with readable(place.folder) as handle:
                    if not os.listdir(handle):
                        os.fchown(handle, *owner)
    return made
