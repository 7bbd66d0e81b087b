"""Writing of files on the controller: replaced in one step, with the modules that are used on nodes too."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprov.files.resources import module_of

if TYPE_CHECKING:
    import gpuprov_lines
    import gpuprov_replace
else:
    module_of("module_utils/gpuprov_place")
    module_of("module_utils/gpuprov_selinux")
    gpuprov_replace = module_of("module_utils/gpuprov_replace")
    gpuprov_lines = module_of("module_utils/gpuprov_lines")


def replace_file(
    path: Path, content: str | bytes | Iterable[bytes], mode: int | None = None, *, follow: bool = True
) -> None:
    """Replace a file, or create it, in one step. Missing folders are not created.

    A link never leads to a new file: in a folder of another person it could lead to a file that a shell or
    SSH of this user reads.

    Args:
        content: the content; text is encoded as UTF-8.
        mode: permissions, independent of the umask; None keeps those of the old file, and gives a new one
            0644, or less by the umask.
        follow: whether the target of a link at the path is replaced; otherwise the link itself is.

    Raises:
        OSError: it cannot be written; the old file is unchanged.
    """
    if follow and path.is_symlink() and not path.exists():
        raise OSError(errno.ENOENT, "is a link to a file that does not exist", str(path))
    data = content.encode() if isinstance(content, str) else content
    gpuprov_replace.replace(str(path), data, mode, follow=follow)


def make_folders(path: Path, mode: int = 0o700) -> list[str]:
    """Create a folder and its missing parents with a mode, independent of the umask; keep existing ones.

    Returns:
        The paths of the created folders, the outermost first.

    Raises:
        OSError: one cannot be created, or a part of the path is not a folder.
    """
    return gpuprov_replace.make_folders(str(path.absolute()), mode)


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append lines to a file that others write to as well, in one step; existing lines are kept.

    A missing file is created with mode 0644.

    Args:
        lines: without their newlines.

    Raises:
        OSError: the file cannot be written; it is unchanged.
    """
    gpuprov_lines.edit_lines(str(path), lambda _line: False, (line.encode() for line in lines), mode=0o644)
