"""The all-reduce of `gpuprov nccl check`: a file that any Python 3.6 runs, with libcuda and libnccl alone."""

from __future__ import annotations

from pathlib import Path

from gpuprov.accept.program import ALL_REDUCE
from gpuprov.model.documents import write_text
from gpuprov.probe.payload import standalone

NAME = "gpuprov-allreduce.py"


def write_script(folder: Path) -> Path:
    """Write the program into a folder; its argument is the number of GPUs, 0 proves that it can run."""
    path = folder / NAME
    write_text(path, standalone(ALL_REDUCE, {}))
    return path
