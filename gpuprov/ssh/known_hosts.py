"""Known-hosts files, read in one place: a line that is none is said, it does not break the reader."""

from __future__ import annotations

from pathlib import Path

import paramiko
from paramiko.hostkeys import InvalidHostKey

from gpuprov.errors import InvalidInput


def read_known_hosts(path: Path) -> paramiko.HostKeys:
    """The keys in a file.

    Raises:
        InvalidInput: it cannot be read, or a line of it is no host key.
    """
    keys = paramiko.HostKeys()
    try:
        keys.load(str(path))
    except InvalidHostKey as error:
        said = f"no key in {error.line[:60]!r}"
    except (OSError, ValueError, IndexError, paramiko.SSHException) as error:
        said = str(error)
    else:
        return keys
    raise InvalidInput(f"{path} is not a known-hosts file: {said}", do="take that line out of it")
