"""Irreversible operations: each is in one place, where it is guarded."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT

FOLDERS = (
    "roles",
    "plugins",
    "playbooks",
    "gpuprov/apply/node",
    "gpuprov/upgrade/node",
    "gpuprov/access/node",
)
APT = "plugins/module_utils/gpuprov_apt.py"
FOR_PEOPLE = {"msg", "fail_msg", "objections"}
DAEMONS = [f"{role}/tasks/{name}.yml" for role in ("docker", "containerd") for name in ("daemon", "restore")]
# Text passed to programs, a shell or Ansible's modules → the files that may contain it.
HARM = {
    r"\bpurge\b|autoremove": {APT},
    r"ansible\.builtin\.(apt|package|dnf)\b": set(),
    r"\bmkfs\b": {"roles/storage/files/format.py"},
    r"\b(wipefs|blkdiscard|sfdisk|parted|lvremove)\b": set(),
    r"\bumount\b": {"roles/storage/tasks/mounts.yml"},
    r"\brm -\w*r|rmtree|-delete\b": {APT, "gpuprov/access/node/deadman.sh"},  # gpuprov_apt only detects it
    r"\b(docker|ctr|crictl) .*\b(rm|rmi|prune|kill|stop|delete)\b": set(),
    r"(docker|containerd)\.service.*\b(restarted|stopped)\b": {f"roles/{each}" for each in DAEMONS},
}


def files() -> Iterator[Path]:
    """Yield all files that run on a node or instruct Ansible there."""
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*")):
        if path.is_file() and not {"__pycache__", "meta", "vars", "modules"} & set(
            path.relative_to(ROOT).parts
        ):
            yield path


def commands_of(path: Path) -> Iterator[str]:
    """Yield the text that a file passes to programs, without messages for people."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yml":
        yield from (json.dumps(task) for task in _tasks(yaml.safe_load(text)))
    elif path.suffix == ".py":
        yield from _lists(ast.parse(text))
    else:
        yield from (line for line in text.splitlines() if not line.lstrip().startswith("#"))


def _tasks(document: Any) -> Iterator[dict[str, Any]]:
    """Yield the tasks of plays and blocks at any depth, without messages for people."""
    for task in document if isinstance(document, list) else []:
        for section in ("tasks", "block", "rescue", "always"):
            yield from _tasks(task.pop(section, []))
        yield _without({**task, "name": ""})


def _without(value: Any) -> Any:
    """Return a value without the keys that are only text for people, at any depth."""
    if isinstance(value, dict):
        return {key: _without(each) for key, each in value.items() if key not in FOR_PEOPLE}
    return value


def _lists(tree: ast.Module) -> Iterator[str]:
    """Yield the strings of each list, tuple and call as one text: in these, programs get their arguments."""
    for node in ast.walk(tree):
        parts = node.elts if isinstance(node, ast.List | ast.Tuple) else getattr(node, "args", None)
        words = [each for part in parts for each in ast.walk(part)] if isinstance(parts, list) else []
        yield " ".join(str(word.value) for word in words if isinstance(word, ast.Constant))


@pytest.mark.parametrize("harm", HARM)
def test_what_cannot_be_undone_is_reported_in_its_one_place(harm: str) -> None:
    tell = {path for path in files() if any(re.search(harm, each) for each in commands_of(path))}
    assert {str(path.relative_to(ROOT)) for path in tell} == HARM[harm]


def test_every_transaction_of_apt_is_tried_before_it_is_done() -> None:
    for path in files():
        installs = any(re.search(r"\binstall\b", each) and "dkms" not in each for each in commands_of(path))
        if installs and path.suffix == ".py":
            assert re.search(r"refuse_removals\(|simulated\(|fetch_packages\(", path.read_text()), path
        if path.suffix == ".yml":
            tells = [each for each in commands_of(path) if re.search(r"apt-get", each)]
            assert all(re.search("--simulate|indextargets", each) for each in tells), path
