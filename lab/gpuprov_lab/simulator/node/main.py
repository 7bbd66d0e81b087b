"""Entry point of all simulated programs: each launcher on the node calls `main` with its program's name."""

from __future__ import annotations

import os
import sys

from .answers import Answer
from .places import ROOT_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .files import Files


def main(name: str, arguments: list[str]) -> int:
    """Run the program of that name and return its exit status; print a stored answer of nvidia-smi if it
    still holds.
    """
    if name == "nvidia-smi":
        said = Answer(os.environ.get(ROOT_VARIABLE, "/"), arguments).again()
        if said is not None:
            sys.stdout.write(said)
            return 0
    from .files import Files

    return _program(name)(Files.here(), arguments)


def _program(name: str) -> Callable[[Files, list[str]], int]:
    """Return the function of a simulated program; only its own module is loaded."""
    if name == "nvidia-smi":
        from .smi import main as program
    elif name == "nvidia-persistenced":
        from .daemons import persistenced as program
    elif name == "nv-fabricmanager":
        from .daemons import fabric_manager as program
    elif name == "gpuprov-sim":
        from .control import control as program
    else:
        from . import kmod

        program = getattr(kmod, name)
    return program
