"""Programs sent to nodes: each contains all modules that it imports; a missing one fails only on a node."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

import gpuprov
from gpuprov.probe.payload import PROBE, pack


def _programs() -> Iterator[tuple[str, ...]]:
    """Yield all tuples of module names in gpuprov that end with a module for nodes: the programs."""
    for found in pkgutil.walk_packages(gpuprov.__path__, "gpuprov."):
        if ".node" in found.name or "verify.suite" in found.name or found.name.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(found.name)).values():
            names = value if isinstance(value, tuple) and value and isinstance(value[-1], str) else ()
            if names and names[-1].startswith("gpuprov.") and ".node." in names[-1]:
                yield names


PROGRAMS = sorted(set(_programs()))


def test_the_probe_is_among_them() -> None:
    assert PROBE in PROGRAMS
    assert len(PROGRAMS) > 2


@pytest.mark.parametrize("modules", PROGRAMS, ids=lambda modules: modules[-1])
def test_a_program_loads_where_there_is_nothing_of_ours(modules: tuple[str, ...]) -> None:
    program = pack(modules, {"seconds": {}}).stdin
    # Like the bootstrap on the node, but without the call of main.
    load = (
        "import sys, zlib, base64;"
        "text = zlib.decompress(base64.b64decode(sys.stdin.buffer.read())).decode();"
        "exec(text[: text.rindex('main(json.loads(')])"
    )
    ran = subprocess.run([sys.executable, "-IBSc", load], input=program, capture_output=True, check=False)
    assert (ran.returncode, ran.stderr.decode()) == (0, "")
