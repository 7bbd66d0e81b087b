"""Local mirror of NVIDIA's repositories, so that fleets can be locked without a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuprov.catalog import load
from gpuprov.locking.build import build_lock
from gpuprov.model.lock import Lock
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.key import signing_key

MakeLock = Callable[[str], Lock]


@pytest.fixture(scope="session")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> nvidia.Mirror:
    """Mirror for Ubuntu 24.04 on both architectures."""
    root = tmp_path_factory.mktemp("mirror")
    with signing_key() as key:
        nvidia.build(root, load(), ["ubuntu24.04"], "aarch64", key=key)
        return nvidia.build(root, load(), ["ubuntu24.04"], key=key)


@pytest.fixture
def locked(tmp_path: Path, mirror: nvidia.Mirror) -> MakeLock:
    """Function locked(text of groups) that returns the lock of a fleet with packages from the mirror."""

    def make(groups: str) -> Lock:
        """Return the lock of a fleet with these groups."""
        fleet = tmp_path / "fleet.yml"
        place = f"repositories:\n  nvidia: {{url: '{mirror.cuda()}', key: {mirror.key}}}\n"
        fleet.write_text(groups + place)
        return build_lock(fleet)

    return make
