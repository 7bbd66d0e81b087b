"""Versions that apt prefers to those of the lock, as drift and verify read `apt-cache policy`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprov.probe.node import candidates
from gpuprov.probe.parse.packages import parse_candidates
from gpuprov.verify.observers import apt

ARCHIVE = "http://deb.debian.org/debian bookworm/non-free amd64 Packages"
OURS = "535.309.01-1"


def policy(candidate: str, *versions: tuple[str, int, str], name: str = "libcuda1") -> str:
    """Return apt-cache's text on a package that is installed in the lock's version."""
    lines = [f"{name}:", f"  Installed: {OURS}", f"  Candidate: {candidate}", "  Version table:"]
    for version, priority, source in versions:
        lines.append(f" {'***' if version == OURS else '   '} {version} {priority}")
        lines += [f"        {priority} {source}"] * bool(source)
        lines += ["        100 /var/lib/dpkg/status"] * (version == OURS)
    return "\n".join(lines) + "\n"


LOCKED = (OURS, 500, ARCHIVE)
BENIGN = {
    "the lock's version": policy(OURS, LOCKED),
    "a newer version of the archive, which the hold prevents": policy("550", ("550", 500, ARCHIVE), LOCKED),
    "the same with NVIDIA's own preference for its repository": policy(
        "550", ("550", 600, ARCHIVE), (OURS, 600, ARCHIVE)
    ),
    "a version that the archive no longer has": policy("550", ("550", 500, ARCHIVE), (OURS, 100, "")),
    "backports": policy(OURS, ("550", 100, ARCHIVE), LOCKED),
    "a phased update": policy(OURS, LOCKED).replace(f"{OURS} 500", f"{OURS} 500 (phased 20%)"),
    "a package that is not installed": policy("550", ("550", 500, ARCHIVE)).replace(
        f"Installed: {OURS}", "Installed: (none)"
    ),
}
PREFERRED = {
    "an older version by a pin": (
        policy("525", LOCKED, ("525", 1001, ARCHIVE)),
        f"libcuda1 525 of {ARCHIVE} (priority 1001)",
    ),
    "the default release": (
        policy("550", ("550", 990, ARCHIVE), LOCKED),
        f"libcuda1 550 of {ARCHIVE} (priority 990)",
    ),
    "a pin, and the lock's version gone": (
        policy("550", ("550", 1000, ARCHIVE), (OURS, 100, "")),
        f"libcuda1 550 of {ARCHIVE} (priority 1000)",
    ),
    "no version": (policy("(none)", (OURS, -1, ARCHIVE)), "libcuda1 none"),
    "a source with a password": (
        policy("550", ("550", 990, "https://me:secret@mirror/debian x/main amd64 Packages"), LOCKED),
        "libcuda1 550 of https://(hidden)@mirror/debian x/main amd64 Packages (priority 990)",
    ),
}


def seen(text: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what drift sees."""
    monkeypatch.setattr(candidates, "run", lambda *argv, seconds: text)
    monkeypatch.setattr(candidates, "PLACES", ())
    raw = candidates.candidates({"held": ["libcuda1"]})
    return [str(each) for each in parse_candidates(raw).preferred]


@pytest.mark.parametrize("name", BENIGN)
def test_what_is_no_preference_is_silent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that settings of apt that prefer no other version are not reported."""
    text = policy(OURS, LOCKED, name="first") + BENIGN[name] + policy(OURS, LOCKED, name="last")
    assert seen(text, monkeypatch) == apt.parse_candidates(text) == []


@pytest.mark.parametrize("name", PREFERRED)
def test_another_version_by_preference_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, expected = PREFERRED[name]
    text = policy(OURS, LOCKED, name="first") + text + policy(OURS, LOCKED, name="last")
    assert seen(text, monkeypatch) == apt.parse_candidates(text) == [expected]


def test_apt_is_asked_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(candidates, "run", lambda *argv, seconds: asked.append(argv) or "")
    assert candidates.candidates({"held": []}) == candidates.candidates({"held": ["a", "b"]})
    assert asked == [("apt-cache", "policy", "--", "a", "b")]


def test_the_places_state_the_priority_or_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins, config = tmp_path / "pins", tmp_path / "config"
    pins.write_text("Package: a\nPin-Priority: 10\n\nPackage: b\nPin-Priority:  1001\n")
    config.write_text('APT::Default-Release "bookworm";\n')
    monkeypatch.setattr(candidates, "PLACES", (f"{tmp_path}/*",))
    assert candidates._places({1001}) == [f"{config}:1", f"{pins}:5"]
