"""Shell scripts for nodes, each combined with the functions that several of them share."""

from __future__ import annotations

import base64
import zlib
from functools import cache
from importlib.resources import files

from gpuprov.probe.payload import standalone

SHARED = ("files.sh", "sshd.sh")
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

    The functions of `SHARED` in `access/node` replace lines such as `. files.sh`, `edit_keys` its line
    `. keys.sh`.
    """
    text = (files(package) / name).read_text("utf-8")
    for each in SHARED:
        functions = (files("gpuprov.access") / "node" / each).read_text("utf-8")
        text = text.replace(f". {each}\n", functions, 1)
    return text.replace(". keys.sh\n", _edit_keys(), 1)


@cache
def _edit_keys() -> str:
    """Return the shell function `edit_keys`, which contains the whole program keys.py."""
    program = base64.b64encode(zlib.compress(standalone(KEYS, {}).encode(), 9)).decode()
    return _EDIT_KEYS.replace("PROGRAM", program)
