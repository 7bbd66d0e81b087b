"""Shell scripts for nodes, each combined with the functions that several of them share."""

from __future__ import annotations

import base64
import zlib
from functools import cache
from importlib.resources import files

from gpuprov.probe.payload import standalone

KEYS = ("gpuprov.access.node.keys",)
_EDIT_KEYS = """\
edit_keys() { # words of keys.py
    for python in python3 /usr/libexec/platform-python /usr/bin/python3 /usr/local/bin/python3; do
        if command -v "$python" >/dev/null; then
            "$python" -IBS -c "import base64,zlib;exec(zlib.decompress(base64.b64decode('PROGRAM')))" "$@"
            return
        fi
    done
    echo "no Python 3 on the node" >&2
    return 4
}
"""


def node_script(package: str, name: str) -> str:
    """Return a shell script of a package, such as `throwaway.sh` of `gpuprov.access`, ready for a node.

    The functions of `access/node/files.sh` replace its line `. files.sh`, `edit_keys` its line `. keys.sh`.
    """
    text = (files(package) / name).read_text("utf-8")
    shared = (files("gpuprov.access") / "node/files.sh").read_text("utf-8")
    return text.replace(". files.sh\n", shared, 1).replace(". keys.sh\n", _edit_keys(), 1)


@cache
def _edit_keys() -> str:
    """Return the shell function `edit_keys`, which contains the whole program keys.py."""
    program = base64.b64encode(zlib.compress(standalone(KEYS, {}).encode(), 9)).decode()
    return _EDIT_KEYS.replace("PROGRAM", program)
