"""Fleets of `examples/`: each locks and keeps its lock; packages come from a local mirror."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.catalog import load
from gpuprov.locking.build import build_lock
from gpuprov.locking.validation import validate_files
from gpuprov.locking.wanted import stated_texts
from gpuprov.model.components import MOVABLE
from gpuprov.model.fleet import read_fleet
from gpuprov.model.lock import read_lock, render_lock, write_lock
from gpuprov.model.profile import load_profile, overlay
from gpuprov.upgrade.known_hooks import KNOWN_HOOKS
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.apt import build_suite
from gpuprov_lab.mirror.key import signing_key
from gpuprov_lab.mirror.specs import PackageSpec
from tests import ROOT

EXAMPLES = sorted(path.parent.name for path in (ROOT / "examples").glob("*/fleet.yml"))
UNIVERSE = (
    PackageSpec("docker.io", "24.0.7-0ubuntu4", "amd64", relations={"Depends": "containerd, runc"}),
    PackageSpec("containerd", "1.7.12-0ubuntu4", "amd64", relations={"Depends": "runc"}),
    PackageSpec("runc", "1.1.12-0ubuntu3", "amd64"),
)


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Values of a fleet's `repositories` for the mirror: NVIDIA's, and Ubuntu's archive."""
    root = tmp_path_factory.mktemp("mirror")
    empty = dict.fromkeys(("main", "restricted", "multiverse"), ())
    with signing_key() as key:
        nvidia.build(root, load(), ["ubuntu24.04"], "aarch64", key=key)
        mirror = nvidia.build(root, load(), ["ubuntu22.04", "ubuntu24.04", "debian12", "rhel9"], key=key)
        for name in ("jammy", "noble"):
            for suite in (name, f"{name}-updates", f"{name}-security"):
                held = UNIVERSE if suite == name else ()
                build_suite(root / "ubuntu", suite, {**empty, "universe": held}, "amd64", key)
    places = {**mirror.urls(), "ubuntu": (root / "ubuntu").as_uri()}
    return {name: {"url": url, "key": str(mirror.key)} for name, url in places.items()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_locks(name: str, repositories: dict[str, Any], tmp_path: Path) -> None:
    """Check that an example is locked, and that locking it again changes nothing."""
    folder = tmp_path / name
    shutil.copytree(ROOT / "examples" / name, folder)
    path = folder / "fleet.yml"
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump({**document, "repositories": repositories}))
    lock = build_lock(path)
    fleet = read_fleet(path)
    assert set(lock.groups) == set(fleet.groups)
    for group, stated in fleet.groups.items():
        profile = load_profile(stated.profile, [folder / "profiles"]).profile
        stack = overlay(profile.stack, stated.stack)
        managed = {
            each for each in MOVABLE if stated_texts(stack, each) and "none" not in stated_texts(stack, each)
        }
        components = dict(lock.groups[group].components.each())
        assert managed - {"driver"} <= set(components)
        assert components["driver"].closure
        assert set(stated.settings.model_fields_set) <= set(lock.groups[group].settings)
    hooks = fleet.rollout.hooks if fleet.rollout else None
    for moment in ("drain", "snapshot", "resume") if hooks else ():
        hook = getattr(hooks, moment)
        assert hook is None or hook.use is None or moment in KNOWN_HOOKS[hook.use].commands
    assert build_lock(path, previous=lock) == lock
    written = folder / "fleet.lock.yml"
    write_lock(lock, written)
    assert render_lock(read_lock(written)) == written.read_text(encoding="utf-8")
    assert validate_files(path).problems == []


def test_there_are_a_dozen_and_each_is_in_the_list_with_its_first_words() -> None:
    assert len(EXAMPLES) >= 12
    listed = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[([\w-]+)\]\(\1/fleet\.yml\) \|", listed, re.MULTILINE) == EXAMPLES
    for name in EXAMPLES:
        assert (ROOT / "examples" / name / "fleet.yml").read_text(encoding="utf-8").startswith("# "), name
