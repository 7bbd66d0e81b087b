"""Drift sends the modules of all collectors that its observations read."""

from __future__ import annotations

import ast

from gpuprov.drift.observations.registry import READS
from gpuprov.probe.payload import EXAMINATION, MODULES
from tests import ROOT


def collectors_of(modules: tuple[str, ...]) -> set[str]:
    """Return the names of the collectors in modules of the probe."""
    trees = [ast.parse((ROOT / f"gpuprov/probe/node/{name}.py").read_text()) for name in modules]
    return {
        node.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and "collector" in "".join(map(ast.unparse, node.decorator_list))
    }


def test_each_observation_reads_collectors_that_drift_sends() -> None:
    read = {name for collectors in READS.values() for name in collectors}
    assert "units" in read
    assert read - collectors_of(MODULES) == set()
    assert "gpu_tools" in collectors_of(EXAMINATION) - collectors_of(MODULES)
