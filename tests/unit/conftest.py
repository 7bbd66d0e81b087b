"""State folders without a history for all unit tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import gpuprov_own_tmp
import pytest
from hypothesis import HealthCheck, settings

# Properties do not depend on time: a busy machine must not make one fail.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(autouse=True, scope="session")
def shared_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """State folder for fixtures that outlive a test."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def own_state(shared_state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """State folder of each test; `mktemp` would read the names of all others first."""
    folder = Path(tempfile.mkdtemp(dir=shared_state))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


@pytest.fixture(autouse=True, scope="session")
def shared_tmp() -> Iterator[None]:
    """Keep /tmp for programs that are to have one of their own: the files of tests are there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpuprov_own_tmp, "LIBC", None)
        yield
