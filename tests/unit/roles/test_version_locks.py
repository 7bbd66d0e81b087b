"""Version locks of dnf, packages that dnf-automatic excludes, and dnf's repositories, from files' texts."""

from __future__ import annotations

from pathlib import Path

import gpuprov_node as node
import gpuprov_repos as repos
import gpuprov_versionlock as versionlock
import pytest

from gpuprov.probe.node import packages
from tests.unit.roles.scripts import script

lock = script("package_pins", "lock")
LISTED = "# by hand\nkernel-0:5.14.0-570.el9.*\nlibnccl-0:2.27.7-1+cuda13.0.*\nold-0:1-1.*\n"


def test_each_package_has_one_line_and_lines_of_others_stay() -> None:
    packages = {"libnccl": "2.28.3-1+cuda13.0", "nvidia-driver-cuda": "3:580.95.05-1.el9"}
    text, locked, released = lock.merged(LISTED, packages, {"old", "gone"})
    assert text.splitlines() == [
        "# by hand",
        "kernel-0:5.14.0-570.el9.*",
        "libnccl-0:2.28.3-1+cuda13.0.*",
        "nvidia-driver-cuda-3:580.95.05-1.el9.*",
    ]
    assert (locked, released) == (["libnccl", "nvidia-driver-cuda"], ["old"])
    assert lock.merged(text, packages, {*packages}) == (text, [], [])


def test_check_mode_on_a_node_without_any_of_its_files_or_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OURS", "OUR_PATTERNS", "AUTOMATIC"):
        monkeypatch.setattr(lock, name, str(tmp_path / name / "file"))
    monkeypatch.setattr(versionlock, "LIST", str(tmp_path / "plugins/versionlock.list"))
    monkeypatch.setattr(versionlock, "place", lambda: None)
    result = lock.settle({"packages": {"tool": "1-1"}, "patterns": ["tool*"], "check": True})
    assert result == {"locked": ["tool"], "released": [], "excluded": True, "changed": True}
    assert [*tmp_path.iterdir()] == []


def test_a_file_of_dnf_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "automatic.conf"
    path.write_text("password = secret\n")
    path.chmod(0o600)
    lock.write(str(path), "[base]\n")
    lock.write(str(tmp_path / "new/file"), "[base]\n")
    assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "new/file").stat().st_mode & 0o777 == 0o644


def test_a_name_that_begins_like_another_is_another_package() -> None:
    text = "libnccl-devel-0:2.27.7-1+cuda13.0.*\n"
    assert lock.merged(text, {"libnccl": "2-1"}, set())[0].splitlines()[0] == text.strip()


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("", "[base]\nexcludepkgs = nvidia-*\n"),
        ("[base]\nexcludepkgs = kernel*,\n  foo\n", "[base]\nexcludepkgs = kernel* nvidia-*\n"),
        ("[commands]\na = 1\n[base]\nb = 2\n", "[commands]\na = 1\n[base]\nexcludepkgs = nvidia-*\nb = 2\n"),
    ],
)
def test_excluded_packages_of_a_user_stay(text: str, after: str) -> None:
    assert lock.excluded(text, ["nvidia-*"], {"foo"}) == after
    assert lock.excluded(after, ["nvidia-*"], {"nvidia-*"}) == after


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        (None, None),
        ("[main]\nenabled = 0\n", None),
        ("[main]\nenabled = 1\n", versionlock.LIST),
        ("[main]\nlocklist = /etc/locks\n", "/etc/locks"),
        ("enabled = 1\n", None),
    ],
)
def test_the_list_in_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str | None, place: str | None
) -> None:
    path = tmp_path / "versionlock.conf"
    if settings is not None:
        path.write_text(settings)
    monkeypatch.setattr(versionlock, "SETTINGS", str(path))
    assert versionlock.place() == place


@pytest.mark.parametrize(
    ("pattern", "held"),
    [
        ("nvidia-open-3:580.1-1.el9.*", True),
        ("nvidia-open-580.1-1.el9", True),
        ("nvidia-open", True),
        ("nvidia*-3:580.*", True),
        ("nvidia-open-3:595.1-1.el9.*", False),
        ("nvidia-open-0:580.1-1.el9.*", False),
    ],
)
def test_a_lock_is_for_a_version(pattern: str, held: bool) -> None:
    assert versionlock.is_locked("nvidia-open", "3:580.1-1.el9", "noarch", [pattern]) is held


def test_packages_of_rpm_have_names_as_apts(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = (
        "gpg-pubkey\t1-1\t(none)\nlibnccl\t2.28.3-1+cuda13.0\tx86_64\nglibc\t2.34-1\ti686\n"
        "kernel-core\t5.14.0-570.el9\tx86_64\nkernel-headers\t5.14.0-570.el9\tx86_64\ntool\t0:1-1\tnoarch\n"
    )
    monkeypatch.setattr(node, "has_dpkg", lambda: False)
    monkeypatch.setattr(node, "database", lambda *_: listed)
    monkeypatch.setattr(node.os, "uname", lambda: type("uname", (), {"machine": "x86_64"}))
    monkeypatch.setattr(versionlock, "locks", lambda: ["tool-0:1-1.*"])
    assert [tuple(row) for row in node.packages()] == [
        ("i", "i", "libnccl", "2.28.3-1+cuda13.0"),
        ("i", "i", "glibc:i686", "2.34-1"),
        ("i", "i", "kernel-core-5.14.0-570.el9.x86_64", "5.14.0-570.el9"),
        ("i", "i", "kernel-headers", "5.14.0-570.el9"),
        ("h", "i", "tool", "1-1"),
    ]


def test_repositories_that_are_not_the_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cuda.repo").write_text("[cuda]\nbaseurl=http://mirror/rhel9/x86_64/\ngpgcheck=0\n")
    (tmp_path / "site.repo").write_text(
        "[site]\nbaseurl=http://u:p@site/nvidia\ngpgcheck=1\n[off]\nbaseurl=http://mirror/rhel9/x86_64\nenabled=0\n"
    )
    (tmp_path / "bad.repo").write_text("no section\n")
    own = "http://mirror/rhel9/x86_64"
    assert repos.foreign(str(tmp_path / "gpuprov.repo"), [own + "/"], str(tmp_path)) == [
        {"path": str(tmp_path / "cuda.repo"), "only_ours": True},
        {"path": str(tmp_path / "site.repo"), "only_ours": False},
    ]
    found = repos.repositories(str(tmp_path))
    monkeypatch.setattr(repos, "repositories", lambda: found)
    monkeypatch.setattr(repos, "answer", lambda *_, **__: "site\tlibnccl\n")
    monkeypatch.setattr(repos, "output", lambda *_, **__: "")
    assert repos.offers([own], ["libnccl"]) == [
        [f"{tmp_path}/site.repo:1", "http://site/nvidia", "", ["libnccl"]]
    ]
    monkeypatch.setattr(repos, "output", lambda *_, **__: "epel-release")
    monkeypatch.setattr(repos, "answer", pytest.fail)  # dnf takes a second where all are the distribution's
    assert repos.offers([own], ["libnccl"]) == []
    monkeypatch.setattr(repos, "answer", lambda *_, **__: "site\tlibnccl\n")
    monkeypatch.setattr(repos, "repositories", lambda: [each._replace(unsigned="gpgcheck") for each in found])
    assert [row[2] for row in repos.offers([own], ["libnccl"])] == ["gpgcheck"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("[main]\nenabled = 1\n", []),
        ("[main]\nenabled = 0\n", [2]),
        ("[main]\n\nenabled: off\n", [3]),
        ("# enabled = 0\n[main]\nlocklist = LIST\n", []),
    ],
)
def test_the_probe_names_the_line_that_switches_the_locks_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, lines: list[int]
) -> None:
    settings, listed = tmp_path / "versionlock.conf", tmp_path / "site.list"
    listed.write_text("tool-0:1-1.*\n")
    settings.write_text(text.replace("LIST", str(listed)))
    monkeypatch.setattr(versionlock, "SETTINGS", str(settings))
    monkeypatch.setattr(versionlock, "LIST", str(listed))
    monkeypatch.setattr(packages, "names_in", lambda _path: [])
    assert list(packages._cleared()) == [f"{settings}:{line}" for line in lines]
    if lines or "LIST" in text:
        assert packages._version_locks() == ("" if lines else "tool-0:1-1.*\n")
