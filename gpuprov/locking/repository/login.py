"""Login and password of a repository's server, from the operator's netrc file."""

from __future__ import annotations

import base64
import netrc
import os
import shlex
from urllib.parse import urlsplit

from gpuprov.errors import InvalidInput, Refused
from gpuprov.untrusted.stated import stated_path


def login_of(url: str) -> dict[str, str]:
    """Return the header that logs in at a URL's host; empty if the file has no entry for it, or cannot be
    read.

    The file is `$NETRC`, or `~/.netrc`. Its `default` entry is ignored, and without TLS nothing is sent.

    Raises:
        Refused: other users may read the file.
        InvalidInput: it is not in the format of netrc(5).
    """
    parts = urlsplit(url)
    path = stated_path(os.environ.get("NETRC") or "~/.netrc")
    if parts.scheme != "https" or not parts.hostname or not path.is_file():
        return {}
    try:
        mode = path.stat().st_mode
        found = netrc.netrc(path).hosts.get(parts.hostname)
    except netrc.NetrcParseError as error:
        raise InvalidInput(f"{path}:{error.lineno}: {error.msg}", expected="the form of netrc(5)") from None
    except OSError:
        return {}
    if found is None:
        return {}
    if mode & 0o077:
        raise Refused(
            f"{path} has passwords, and other users may read it", do=f"chmod 600 {shlex.quote(str(path))}"
        )
    login, _, password = found
    return {"Authorization": "Basic " + base64.b64encode(f"{login}:{password}".encode()).decode()}
