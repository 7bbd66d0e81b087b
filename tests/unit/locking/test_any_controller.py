"""Sources of distributions' archives on any controller: its own mirror, or the catalog's."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprov.catalog import load
from gpuprov.errors import GpuprovError
from gpuprov.locking import archives
from gpuprov.locking.archives import Finder, archive_keys
from gpuprov.locking.build import build_lock
from gpuprov.locking.repository.sources import AptSource, RepositorySpec
from gpuprov.model.fleet import parse_fleet
from gpuprov.untrusted.openpgp import fingerprints
from tests.systems import CODENAMES

DEBIAN = [
    AptSource("http://mirror.example/debian", "bookworm", ("main",)),
    AptSource("http://mirror.example/debian", "bookworm-updates", ("main",)),
    AptSource("http://mirror.example/security", "bookworm-security", ("main",)),
]
UBUNTU = [AptSource("http://mirror.example/ubuntu", "noble", ("main",))]
CONTROLLERS = {
    "debian12": ("bookworm", DEBIAN),
    "ubuntu24.04": ("noble", UBUNTU),
    "rhel9": ("", []),
    "macos": ("", []),
}
PUBLIC = {
    "debian": "http://deb.debian.org/debian",
    "debian-updates": "http://deb.debian.org/debian",
    "debian-security": "http://deb.debian.org/debian-security",
    "ubuntu": "http://archive.ubuntu.com/ubuntu",
}
SIGNED_BY = {
    "debian12": "B8B80B5B623EAB6AD8775C45B7C5D7D6350947F8",
    "debian13": "04B54C3CDCA79751B16BC6B5225629DF75B188BD",
    "ubuntu22.04": "F6ECB3762474EDA9D21B7022871920D1991BC93C",
    "ubuntu24.04": "F6ECB3762474EDA9D21B7022871920D1991BC93C",
    "ubuntu26.04": "F6ECB3762474EDA9D21B7022871920D1991BC93C",
}
GROUP = "groups: {g: {profile: hgx-a100-4, hosts: a, os: debian12}}\n"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[RepositorySpec]:
    """The repositories that would be opened."""
    found: list[RepositorySpec] = []
    monkeypatch.setattr(archives, "open_all", lambda specs, arch: found.extend(specs))
    return found


def look(system: str, arch: str = "x86_64", repositories: str = "") -> None:
    """Search the sources of a distribution's archive for a system, in a fleet with these repositories."""
    catalog = load()
    named = catalog.systems[system]
    fleet = parse_fleet(GROUP + repositories, "fleet.yml")
    Finder(fleet, catalog).archives(named.family, named, arch)


@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("system", SIGNED_BY)
def test_every_system_is_locked_from_every_other(
    opened: list[RepositorySpec],
    monkeypatch: pytest.MonkeyPatch,
    system: str,
    controller: str,
    tmp_path: Path,
) -> None:
    """Use the machine's own mirror for its own family; use the shipped keyrings if it has none."""
    monkeypatch.setattr(archives, "own_sources", lambda: CONTROLLERS[controller])
    gone = {family: tmp_path / family for family in ("debian", "ubuntu")}
    monkeypatch.setattr(archives, "KEYRINGS", gone)
    look(system)
    own = controller.rstrip("0123456789.") == system.rstrip("0123456789.")
    for spec in opened:
        kept = spec.url.startswith("http://mirror.example/")
        assert kept if own else spec.url == PUBLIC[spec.id]
        assert all(suite.split("-")[0] == CODENAMES[system] for suite in spec.suites)
        assert spec.keyring is not None
        assert SIGNED_BY[system] in fingerprints(spec.keyring)  # type: ignore[arg-type]
    assert {spec.id for spec in opened} == (
        {"ubuntu"} if "ubuntu" in system else {"debian", "debian-updates", "debian-security"}
    )


def test_ubuntu_for_arm_is_elsewhere(opened: list[RepositorySpec], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "own_sources", lambda: CONTROLLERS["debian12"])
    look("ubuntu24.04", "aarch64")
    assert [spec.url for spec in opened] == ["http://ports.ubuntu.com/ubuntu-ports"]


def test_the_fleets_mirror_counts_before_both(
    opened: list[RepositorySpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    for controller in CONTROLLERS.values():
        monkeypatch.setattr(archives, "own_sources", lambda own=controller: own)
        look("ubuntu24.04", repositories="repositories: {ubuntu: 'https://ours.example/ubuntu'}\n")
    assert {spec.url for spec in opened} == {"https://ours.example/ubuntu"}


def test_a_keyring_that_the_machine_keeps_up_to_date_counts_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "own.gpg"
    own.write_bytes(archive_keys("ubuntu") if isinstance(archive_keys("ubuntu"), bytes) else b"")
    monkeypatch.setitem(archives.KEYRINGS, "ubuntu", own)
    assert archive_keys("ubuntu") == own


def test_what_is_missing_here_is_said_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "fleet.yml").write_text(GROUP)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(archives, "open_all", lambda *_: pytest.fail("something was fetched"))
    with pytest.raises(GpuprovError, match=r"^gpgv is not installed here: .*; install it: package gpgv"):
        build_lock(tmp_path / "fleet.yml")


def test_sources_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "etc/apt/sources.list.d"
    folder.mkdir(parents=True)
    (tmp_path / "etc/os-release").write_text("VERSION_CODENAME=bookworm\n")
    (folder / "a.list").write_bytes(b"deb http://a/ \xff main\n")
    (folder / "b.list").mkdir()
    (folder / "c.list").write_text("deb http://c/ bookworm main\n")
    name, sources = archives.own_sources(tmp_path)
    assert (name, [each.uri for each in sources]) == ("bookworm", ["http://c"])
