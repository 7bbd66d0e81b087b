"""Preload module for Dask's scheduler and workers: no HTTP port, and no scratch folder of other users.

Dask opens a port even without its dashboard (`/health`, `/info`, `/metrics`). It imports modules from its
scratch folder, by default `/tmp/dask-scratch-space`, which any user can create first. Usage:

    dask scheduler --preload gpuprov.ssh.workers.closed
    dask worker --preload gpuprov.ssh.workers.closed
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distributed.diskutils import WorkSpace
from distributed.node import ServerNode

from gpuprov.errors import Refused
from gpuprov.files.mutex import own_folder
from gpuprov.files.ways import require_own_above

FOLDER = "temporary-directory"
"""Dask's setting of the folder in which it creates its scratch folder."""


def _own_scratch(_space: WorkSpace, scratch: str) -> str:
    """Replace `WorkSpace._init_workspace`; create the scratch folder for this user only.

    Raises:
        Refused: other users can write the folder, or one above it.
    """
    above = Path(scratch).absolute().parent
    try:
        own_folder(str(above), 0o755)
        own_folder(scratch, 0o700)
        require_own_above(Path(scratch))
    except OSError as error:
        seen = str(error.strerror).partition("; ")[0]
        raise Refused(
            f"Dask's folder {error.filename} is not safe: {seen}",
            expected=f"{FOLDER} in Dask's configuration, a folder that only this user can write",
            do="see docs/scale.md",
        ) from None
    return scratch


def _serve_no_pages(self: ServerNode, *arguments: Any, **options: Any) -> None:
    """Replace `ServerNode.start_http_server`, which Dask calls before it accepts work; open no port.

    A worker may have created its scratch folder before it imported this module.

    Raises:
        Refused: other users can write its scratch folder.
    """
    if space := getattr(self, "_workspace", None):
        _own_scratch(space, space.base_dir)


WorkSpace._init_workspace = _own_scratch
ServerNode.start_http_server = _serve_no_pages


def dask_setup(server: Any) -> None:
    """Do nothing: Dask imports a preload before it accepts work, and the import replaces both functions."""
