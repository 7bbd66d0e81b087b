"""A made-up release of each family: one row in the catalog is enough to lock it, to plan, and for preflight.

The table of platforms gets a row that says only that node tests have shown the roles on it.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from jinja2.nativetypes import NativeEnvironment

from gpuprov.apply.plan import plan_node
from gpuprov.catalog import Catalog, load, platforms
from gpuprov.catalog.platforms import platform
from gpuprov.drift.judge import judge
from gpuprov.inventory.variables import group_variables
from gpuprov.locking.build import build_lock
from gpuprov.model.lock import Lock
from gpuprov.probe.facts import Facts
from gpuprov.roles import expectations
from gpuprov_lab.mirror import nvidia
from tests import RECORDED_FACTS, ROOT
from tests.made_up import MADE_UP, OS_RELEASE, forget, known, site_catalog
from tests.unit.roles.scripts import script


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a site's catalog with a row for each made-up release."""
    return site_catalog(tmp_path_factory.mktemp("catalog"))


@pytest.fixture(autouse=True)
def table(tmp_path: Path) -> Iterator[None]:
    """Let the table of platforms have a row for each made-up release."""
    with known(tmp_path):
        yield


@pytest.fixture(scope="module")
def lock(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Lock:
    """Return the lock of a fleet with a group for each made-up release."""
    folder = tmp_path_factory.mktemp("fleet")
    mirror = nvidia.build(folder / "mirror", load([site]), MADE_UP)
    (folder / "profiles").mkdir()
    profile = {"hardware": {"gpu": {"model": "L40S", "count": 2}}}
    (folder / "profiles/small.yml").write_text(yaml.safe_dump(profile))
    key = str(mirror.key)
    stack = {
        "driver": 580,
        "cuda": "13.0",
        "nccl": "auto",
        "container_toolkit": "auto",
        "repository": "nvidia",
    }
    stated = {
        "catalog_dirs": [str(site)],
        "groups": {
            f"group-{number}": {"profile": "small", "hosts": f"n{number}", "os": name, "stack": dict(stack)}
            for number, name in enumerate(MADE_UP)
        },
        "repositories": {
            "nvidia": {"url": mirror.cuda(), "key": key},
            "container-toolkit": {"url": mirror.container_toolkit(), "key": key},
        },
    }
    (folder / "fleet.yml").write_text(yaml.safe_dump(stated))
    return build_lock(folder / "fleet.yml")


def group_of(lock: Lock, system: str) -> Any:
    """Return the group with a system."""
    return next(group for group in lock.groups.values() if group.os == system)


@pytest.mark.parametrize("system", MADE_UP)
def test_it_locks(lock: Lock, system: str) -> None:
    """Check that a fleet with a made-up system is locked."""
    group = group_of(lock, system)
    assert group.components.driver.version.startswith("580.")
    assert {"cuda", "nccl", "container_toolkit"} <= {name for name, _ in group.components.each()}
    streams = load().systems[MADE_UP[system]].streams
    assert group.components.driver.stream == ("nvidia-driver:580-open" if streams else None)


@pytest.mark.parametrize("system", MADE_UP)
def test_it_plans(lock: Lock, system: str) -> None:
    """Check that a node with a made-up system has that of its lock and is planned, and differs from another
    lock's.
    """
    group, (identity, version) = group_of(lock, system), OS_RELEASE[system]
    answer = copy.deepcopy(json.loads(RECORDED_FACTS.read_text()))
    facts = answer["collectors"]
    facts["system"]["os_release"] = f'ID={identity}\nVERSION_ID="{version}"\n'
    found = judge("n", Facts.from_answer(answer), expectations(group))
    assert "system.os" not in {each.check for each in found.drift}
    roles = plan_node(found).roles
    assert roles[:3] == ("preflight", "repositories", "nvidia_driver")
    assert roles[-1] == "package_pins" or "package_pins" in roles
    other = judge("n", Facts.from_answer(answer), expectations(group.model_copy(update={"os": "debian12"})))
    assert "system.os" in {each.check for each in other.drift}


def objections(variables: dict[str, Any], look: dict[str, Any]) -> list[str]:
    """Return preflight's objections to the system of a node, as its variables state them."""
    stated = yaml.safe_load((ROOT / "roles/preflight/vars/main.yml").read_text(encoding="utf-8"))
    defaults = yaml.safe_load((ROOT / "roles/preflight/defaults/main.yml").read_text(encoding="utf-8"))
    environment = NativeEnvironment()
    environment.filters["regex_escape"] = re.escape
    environment.filters["unique"] = lambda values: list(dict.fromkeys(values))
    environment.tests["match"] = lambda value, pattern: re.match(pattern, value) is not None
    known: dict[str, Any] = {**defaults, **variables, "__preflight_look": look}

    def rendered(text: str) -> Any:
        return environment.from_string(text).render(known)

    known["__preflight_supported"] = stated["__preflight_supported"]
    for name in ("__preflight_systems", "__preflight_known"):
        known[name] = rendered(stated[name])
    of_system = [each for each in stated["__preflight_objections"] if "preflight_os " in each["holds"]]
    assert len(of_system) == 2
    return [str(rendered(each["says"])) for each in of_system if rendered(each["holds"])]


def looked(folder: Path, monkeypatch: pytest.MonkeyPatch, identity: str, version: str) -> dict[str, Any]:
    """Return the system that preflight's script reads on a node."""
    look = script("preflight")
    (folder / "os-release").write_text(f'ID="{identity}"\nVERSION_ID="{version}"\n')
    monkeypatch.setattr(look, "OS_RELEASE", folder / "os-release")
    system, shown = look.operating_system()
    return {"system": system, "os": shown}


@pytest.mark.parametrize("system", MADE_UP)
def test_it_passes_preflight(
    lock: Lock, system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a node with a made-up system passes the role's preflight, and one with another system does
    not.
    """
    variables = group_variables(group_of(lock, system))
    look = looked(tmp_path, monkeypatch, *OS_RELEASE[system])
    assert objections(variables, look) == []
    other = looked(tmp_path, monkeypatch, "debian", "12")
    assert "the node runs debian12 and the lock was made for" in objections(variables, other)[0]


def test_without_the_row_preflight_refuses_it(
    lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not by monkeypatch, whose undoing comes after that of `table`: the next file would have this table.
    with patch.object(platforms, "TABLE", platforms.OWN / "systems.json"):
        forget()
        for system in MADE_UP:
            assert not platform(system).tested
            variables = group_variables(group_of(lock, system))
            look = looked(tmp_path, monkeypatch, *OS_RELEASE[system])
            assert "these roles support debian12, " in objections(variables, look)[0]


def test_its_catalog_is_the_sites(site: Path) -> None:
    catalog: Catalog = load([site])
    assert set(MADE_UP) <= set(catalog.systems)
    assert not set(MADE_UP) & set(load().systems)
