"""Every profile that is shipped: reads, resolves, locks."""

from __future__ import annotations

import pytest

from gpuprov.profile import load_profile, shipped_profiles

from .conftest import MakeLock

NAMES = [name for name, _ in shipped_profiles() if load_profile(name, []).profile.hardware.gpu.model]


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_profile_locks(name: str, locked: MakeLock) -> None:
    stated = load_profile(name, []).profile
    arch = "aarch64" if name.startswith("gb200") else "x86_64"
    lock = locked(
        f"groups:\n  x: {{profile: {name}, hosts: 'n[1-2]', os: ubuntu24.04, arch: {arch},"
        " stack: {repository: nvidia}}\n"
    )
    group = lock.groups["x"]
    assert group.hardware.gpu_count == stated.hardware.gpu.count
    assert group.components.driver.closure


def test_a_shipped_profile_tells_what_it_is() -> None:
    assert len(NAMES) >= 24
    for name, profile in shipped_profiles():
        assert profile.description, name
