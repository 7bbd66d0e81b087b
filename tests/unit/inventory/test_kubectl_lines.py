"""Lines of docs/guides/kubernetes.md and of the export, run by the real kubectl."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprov.catalog import load
from gpuprov.inventory.exports import Choices, kubernetes_files, node_labels
from tests import ROOT
from tests.unit.inventory.conftest import MakeLock
from tests.unit.inventory.test_export_kubernetes import FLEET, NODE, equipped
from tests.unit.upgrade.kubernetes_api import ApiNode, served

PAGE = (ROOT / "docs/guides/kubernetes.md").read_text(encoding="utf-8")


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiNode]:
    """A fake API server that knows one node; kubectl finds it in the environment."""
    node = ApiNode()
    with served(tmp_path, node) as environment:
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        yield node


def typed(line: str, folder: Path) -> str:
    """Return the output of a line of the shell, which must succeed."""
    done = subprocess.run(
        ["/bin/sh", "-ec", line], cwd=folder, env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_labels_are_set_by_the_printed_line(api: ApiNode, tmp_path: Path) -> None:
    typed(node_labels([NODE], of_discovery=True), tmp_path)
    labels = api.node["metadata"]["labels"]
    assert (labels["gpuprov.io/driver"], labels["nvidia.com/gpu.count"]) == ("580.95.05", "8")


def test_manifests_are_taken_by_the_lines_of_the_guide(
    locked: MakeLock, api: ApiNode, tmp_path: Path
) -> None:
    files = kubernetes_files(equipped(locked(FLEET.format("", ""))), ["gpu01"], load(), Choices(replicas=4))
    lines = re.findall(r"`(kubectl apply .*?)FILE`", PAGE)
    manifests = {name: text for name, text in files.items() if "\nkind: " in f"\n{text}"}
    assert len(lines) == len(manifests) == 2
    for name, text in manifests.items():
        (tmp_path / name).write_text(text)
        line = lines["configmap" not in name]
        said = typed(f"{line} {name} --dry-run=client --validate=false", tmp_path)
        assert said.endswith(" created (dry run)\n"), said
    assert api.requests == []


def test_the_proof_states_the_runtime_class(api: ApiNode, tmp_path: Path) -> None:
    [line] = re.findall(r"`(kubectl run gpu .*?)`", PAGE)
    command, _, program = line.replace(" --rm -it", "").replace("=IMAGE", "=site/cuda").partition(" -- ")
    shown = typed(f"{command} --dry-run=client --output=json -- {program}", tmp_path)
    pod = json.loads(shown)["spec"]
    assert (pod["runtimeClassName"], pod["containers"][0]["args"]) == ("nvidia", shlex.split(program))
    assert api.requests == []
