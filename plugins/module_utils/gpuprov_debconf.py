# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""debconf's database, which users cannot open while packages are changed.

debconf locks its files with flock(2), which needs only the right to read, and does not wait: with a lock of
any user the script of a package fails, and the package stays half-configured.

Runs on nodes: Python 3.6 to 3.14 and its standard library.
"""

import contextlib
import os
import re
import tempfile

from gpuprov_node import TEMPORARY
from gpuprov_replace import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

SETTINGS = "/etc/debconf.conf"
VARIABLE = "DEBCONF_SYSTEMRC"
"""Variable with the path of other settings, debconf.conf(5)."""
OTHERS = 0o077


@contextlib.contextmanager
def closed() -> "Iterator[None]":
    """Run the block with a database that only root can open; do nothing without debconf.

    A lock of an old file has no effect on the file that replaces it. Files that debconf writes in the block
    get the mode of its settings: the block's environment has a copy of them with 600 as each mode. After the
    block the files have their former modes.

    Raises:
        OSError: a file cannot be replaced, or neither /run nor the folder of the database has space.
    """
    try:
        with open(os.environ.get(VARIABLE, SETTINGS), encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
    except OSError:
        yield
        return
    before = os.environ.get(VARIABLE)
    paths = re.findall(r"(?mi)^Filename:[ \t]*(/\S+)", text)
    closed_text = re.sub(r"(?mi)^Mode:.*", "Mode: 600", text)
    try:
        settings = _temporary(closed_text, TEMPORARY)
    except OSError:  # a user can fill /run where a folder in it is everybody's
        settings = _temporary(closed_text, os.path.dirname(paths[0]) if paths else None)
    with settings:
        modes = _close(paths)
        os.environ[VARIABLE] = settings.name
        try:
            yield
        finally:
            os.environ.pop(VARIABLE)
            os.environ.update({VARIABLE: before} if before else {})
            for path, mode in modes.items():
                os.chmod(path, mode)


def _temporary(text: str, folder: "str | None") -> "IO[bytes]":
    """Return a temporary file with a text, which is removed when it is closed.

    Raises:
        OSError: the folder has no space for it.
    """
    with contextlib.ExitStack() as until_written:
        file = until_written.enter_context(tempfile.NamedTemporaryFile(dir=folder))
        file.write(text.encode("utf-8", "surrogateescape"))
        file.flush()
        until_written.pop_all()
    return file


def _close(paths: "list[str]") -> "dict[str, int]":
    """Replace the files that others can open by copies that only root can; return path → former mode.

    A file that a debconf that was killed has left for its next version is removed: debconf locks it, too.
    """
    modes = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + "-new")
        try:
            with open(path, "rb") as file:
                mode, content = os.fstat(file.fileno()).st_mode & 0o7777, file.read()
        except FileNotFoundError:
            continue
        if mode & OTHERS:
            replace(path, content, 0o600)
            modes[path] = mode
    return modes
