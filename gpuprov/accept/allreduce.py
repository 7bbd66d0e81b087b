"""The all-reduce of `gpuprov nccl check`: one file for Python 3.6 or newer that needs only libcuda and
libnccl.
"""

from __future__ import annotations

from pathlib import Path

from gpuprov.accept.program import ALL_REDUCE
from gpuprov.model.documents import write_text
from gpuprov.probe.payload import standalone

NAME = "gpuprov-allreduce.py"


def write_script(folder: Path) -> Path:
    """Write the program `gpuprov-allreduce.py` into a folder and return its path; raises as `write_text`.

    The program's argument is the number of GPUs; 0 only loads the libraries.
    """
    path = folder / NAME
    write_text(path, standalone(ALL_REDUCE, {}))
    return path
