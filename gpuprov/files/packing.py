"""Programs of one file for nodes, from modules of gpuprov."""

from __future__ import annotations

import base64
import json
import zlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprov.files.resources import module_of

if TYPE_CHECKING:
    import node_program
else:
    node_program = module_of("plugin_utils/node_program")


@lru_cache(maxsize=4)
def one_file(modules: tuple[str, ...], data: tuple[str, ...]) -> str:
    """Return a Python program of one file that unpacks its modules at its first start after a boot.

    It calls `start` of the last module with its own path. `gpuprov/probe/node/launcher.py` is its text.

    Args:
        data: paths of files that the modules read, below the folder that contains the package gpuprov.
    """
    root = Path(__file__).parents[2]
    files = json.dumps(node_program.tree(modules, root, data)).encode("ascii")
    blob = base64.b64encode(zlib.compress(files, 9)).decode()
    lines = "\n".join(blob[place : place + 110] for place in range(0, len(blob), 110))
    text = (root / "gpuprov/probe/node/launcher.py").read_text("utf-8")
    return text.replace('PACKED = ""', f'PACKED = """\n{lines}\n"""', 1).replace(
        'MODULE = ""', f'MODULE = "{modules[-1]}"', 1
    )
