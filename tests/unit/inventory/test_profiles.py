"""Shipped profiles: each can be read, resolved and locked."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprov.errors import InvalidInput
from gpuprov.model.profile import load_profile, shipped_profiles
from tests.unit.inventory.conftest import MakeLock

NAMES = [name for name, _ in shipped_profiles() if load_profile(name, []).profile.hardware.gpu.model]


def of_the_mirror(name: str) -> str:
    """Return the keys of a group with a profile: the host's architecture, a stack of the tests' mirror."""
    arm = name.startswith(("gb", "vr", "dgx-spark"))
    driver = ", driver: '615'" if name.startswith("vr") else ""
    return f"arch: {'aarch64' if arm else 'x86_64'}, stack: {{repository: nvidia{driver}}}"


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_profile_locks(name: str, locked: MakeLock) -> None:
    stated = load_profile(name, []).profile
    lock = locked(
        f"groups:\n  x: {{profile: {name}, hosts: 'n[1-2]', os: ubuntu24.04, {of_the_mirror(name)}}}\n"
    )
    group = lock.groups["x"]
    assert group.hardware.gpu_count == stated.hardware.gpu.count
    assert group.components.driver.closure


def test_a_shipped_profile_tells_what_it_is() -> None:
    assert len(NAMES) >= 24
    for name, profile in shipped_profiles():
        assert profile.description, name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu: {cuont: 8}", "x.yml:2: unknown key 'cuont' in hardware.gpu; expected one of count"),
        (
            "nics: [{kind: wifi, speed_gbits: 1}]",
            "x.yml:2: hardware.nics.0.kind is \"wifi\"; expected 'ethernet'",
        ),
        ("memory_gib: lots", 'x.yml:2: hardware.memory_gib is "lots"; expected a whole number'),
    ],
)
def test_a_wrong_profile_is_reported_by_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "x.yml").write_text(f"hardware:\n  {text}\n")
    with pytest.raises(InvalidInput) as raised:
        load_profile("x", [tmp_path])
    assert words in str(raised.value)
