"""Mirror of NVIDIA's repositories for every system, and fleets that use it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from gpuprov.catalog import load
from gpuprov.locking.build import build_lock
from gpuprov.model.lock import Lock
from gpuprov_lab.mirror import nvidia
from tests.unit.locking.fleets import GROUPS, PROFILES, SYSTEMS, Write, written
from tests.unit.shared import built_once


@pytest.fixture(scope="session")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> nvidia.Mirror:
    """Return a mirror of NVIDIA's repositories for all systems."""
    folder = built_once(tmp_path_factory, "mirror", lambda root: nvidia.build(root, load(), SYSTEMS))
    return nvidia.Mirror(folder, folder / "keys/mirror.asc")


@pytest.fixture(scope="session")
def fleet(mirror: nvidia.Mirror, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of a fleet.yml with all groups, and their profiles."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "profiles").mkdir()
    for name, (model, count) in PROFILES.items():
        profile = {"hardware": {"gpu": {"model": model, "count": count}}}
        (folder / "profiles" / f"{name}.yml").write_text(yaml.safe_dump(profile))
    return written(folder / "fleet.yml", GROUPS, mirror)


@pytest.fixture(scope="session")
def lock(fleet: Path) -> Lock:
    """Return a new lock for the fleet."""
    return build_lock(fleet)


@pytest.fixture
def one_group(fleet: Path, mirror: nvidia.Mirror, tmp_path: Path) -> Write:
    """Function that writes a fleet of one group of 8 x H200 on Ubuntu 24.04 with the given stack."""
    shutil.copytree(fleet.parent / "profiles", tmp_path / "profiles")

    def write(place: nvidia.Mirror = mirror, **stack: object) -> Path:
        return written(tmp_path / "fleet.yml", {"train": ("ubuntu24.04", "h200", stack)}, place)

    return write
