"""Packages of a node with dnf in an upgrade and a rollback, from recorded lines of rpm and a fake dnf."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import gpuprov_dnf as dnf
import gpuprov_repos
import gpuprov_versionlock as versionlock
import pytest
from gpuprov_failures import Failed as DnfFailed
from gpuprov_repos import repositories

from gpuprov.probe.node.base import Failed, run
from gpuprov.upgrade.node import lastgood, rpms

LISTED = """\
gpg-pubkey\t350d275d-6279464b\t(none)
libnccl\t2.28.9-1+cuda13.0\tx86_64
nvidia-driver-cuda\t3:580.95.05-1.el9\tx86_64
glibc\t2.34-168.el9_6\ti686
kernel-core\t5.14.0-570.12.1.el9_6\tx86_64
kernel-core\t5.14.0-570.17.1.el9_6\tx86_64
dkms\t0:3.2.2-1.el9\tnoarch
"""
DRIVER = ["3:580.95.05-1.el9", "x86_64"]
LOCK = "nvidia-driver-cuda-3:580.95.05-1.el9.*"


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """Return an empty pool."""
    (tmp_path / "pool").mkdir()
    return tmp_path / "pool"


def test_names_are_those_of_the_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpms, "run", lambda *_, **__: LISTED)
    monkeypatch.setattr(rpms.os, "uname", lambda: type("Machine", (), {"machine": "x86_64"}))
    found = rpms.installed()
    assert found == {
        "libnccl": ["2.28.9-1+cuda13.0", "x86_64"],
        "nvidia-driver-cuda": DRIVER,
        "glibc:i686": ["2.34-168.el9_6", "i686"],
        "kernel-core-5.14.0-570.12.1.el9_6.x86_64": ["5.14.0-570.12.1.el9_6", "x86_64"],
        "kernel-core-5.14.0-570.17.1.el9_6.x86_64": ["5.14.0-570.17.1.el9_6", "x86_64"],
        "dkms": ["3.2.2-1.el9", "noarch"],
    }
    assert [rpms.file_name(name, *about) for name, about in found.items()] == [
        "libnccl-2.28.9-1+cuda13.0.x86_64.rpm",
        "nvidia-driver-cuda-580.95.05-1.el9.x86_64.rpm",
        "glibc-2.34-168.el9_6.i686.rpm",
        "kernel-core-5.14.0-570.12.1.el9_6.x86_64.rpm",
        "kernel-core-5.14.0-570.17.1.el9_6.x86_64.rpm",
        "dkms-3.2.2-1.el9.noarch.rpm",
    ]


def test_what_a_rollback_needs_is_copied_from_the_cache_or_downloaded(
    monkeypatch: pytest.MonkeyPatch, pool: Path, tmp_path: Path
) -> None:
    cached = tmp_path / "nvidia-driver-cuda-580.95.05-1.el9.x86_64.rpm"
    cached.write_text("cached")
    asked: list[list[str]] = []

    def download(names: list[str], folder: str) -> None:
        asked.append(names)
        Path(folder, "libnccl-2.28.9-1.x86_64.rpm").write_text("fetched")

    there = {"nvidia-driver-cuda": DRIVER, "libnccl": ["2.28.9-1", "x86_64"]}
    monkeypatch.setattr(rpms, "installed", lambda: there)
    monkeypatch.setattr(rpms, "cached", lambda: {cached.name: str(cached)})
    monkeypatch.setattr(rpms, "is_whole", lambda path, _: Path(path).is_file())
    monkeypatch.setattr(rpms, "_identities", lambda files: dict.fromkeys(files, "digests"))
    monkeypatch.setattr(rpms, "_download", download)
    wanted = {name: version for name, (version, _) in there.items()}
    assert rpms.keep(wanted, str(pool)) == [cached.name, "libnccl-2.28.9-1.x86_64.rpm"]
    assert asked == [["libnccl-2.28.9-1.x86_64"]]
    assert {path.name: path.read_text() for path in pool.iterdir()} == {
        cached.name: "cached",
        "libnccl-2.28.9-1.x86_64.rpm": "fetched",
    }
    with pytest.raises(Failed, match=r"libnccl 2.27.1-1 is not installed"):
        rpms.keep({"libnccl": "2.27.1-1"}, str(pool))


def test_a_package_that_cannot_be_fetched_leaves_no_way_back(
    monkeypatch: pytest.MonkeyPatch, pool: Path
) -> None:
    monkeypatch.setattr(rpms, "installed", lambda: {"libnccl": ["2.28.9-1", "x86_64"]})
    monkeypatch.setattr(rpms, "cached", dict)
    monkeypatch.setattr(rpms, "_identities", lambda files: dict.fromkeys(files, "digests"))
    monkeypatch.setattr(
        rpms, "run_anyway", lambda *_, **__: (1, "", "No package libnccl-2.28.9-1 available.\n")
    )
    with pytest.raises(
        Failed, match=r"no rollback possible: libnccl-2.28.9-1.x86_64 cannot be fetched \(No pa"
    ):
        rpms.keep({"libnccl": "2.28.9-1"}, str(pool))


SPEC = """\
Name: libnccl
Version: 2.28.9
Release: 1
Summary: one of two packages of the same name and version
License: none
BuildArch: noarch
%description
{0}
%post
echo {0}
%files
"""


def built(folder: Path, word: str) -> Path:
    """Return a package of that name and version, without a signature, whose script prints a word."""
    folder.mkdir()
    (folder / "spec").write_text(SPEC.format(word))
    command = ["rpmbuild", "-bb", "--quiet", "--define", f"_topdir {folder}", str(folder / "spec")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "RPMS/noarch/libnccl-2.28.9-1.noarch.rpm"


def test_only_the_installed_package_is_kept_for_a_rollback(
    monkeypatch: pytest.MonkeyPatch, pool: Path, tmp_path: Path
) -> None:
    """Keep no other package of the same name and version: a rollback installs it without a signature."""
    root, own, other = tmp_path / "root", built(tmp_path / "own", "own"), built(tmp_path / "other", "other")
    rpm = ["rpm", "--root", str(root)]
    subprocess.run([*rpm, "-i", "--nodeps", "--noscripts", str(own)], check=True, capture_output=True)
    offered = {own.name: str(other)}

    def download(names: list[str], folder: str) -> None:
        shutil.copy(other, folder)

    def there(*words: str, **named: Any) -> str:
        return run(*rpm, *words[1:], **named) if words[:2] == ("rpm", "-q") else run(*words, **named)

    monkeypatch.setattr(rpms, "run", there)
    monkeypatch.setattr(rpms, "installed", lambda: {"libnccl": ["2.28.9-1", "noarch"]})
    monkeypatch.setattr(rpms, "cached", lambda: offered)
    monkeypatch.setattr(rpms, "_download", download)
    with pytest.raises(Failed, match=r"no libnccl-2\.28\.9-1\.noarch\.rpm with the digests of the installed"):
        rpms.keep({"libnccl": "2.28.9-1"}, str(pool))
    offered[own.name] = str(own)
    assert rpms.keep({"libnccl": "2.28.9-1"}, str(pool)) == [own.name]
    assert (pool / own.name).read_bytes() == own.read_bytes()


def test_a_package_that_dnf_has_refused_is_not_unpacked_for_a_build(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Remove it from the cache, unless neither its repository nor dnf.conf requires signatures."""
    package = built(tmp_path / "own", "own")
    for name in ("epel", "site", "usual"):
        folder = tmp_path / f"{name}-0123456789abcdef/packages"
        folder.mkdir(parents=True)
        shutil.copy(package, folder)
    (tmp_path / "all.repo").write_text("[epel]\ngpgcheck=1\n[site]\ngpgcheck=0\n[usual]\n")
    (tmp_path / "dnf.conf").write_text("[main]\ngpgcheck=True\n")
    monkeypatch.setattr(gpuprov_repos, "SETTINGS", str(tmp_path / "dnf.conf"))
    monkeypatch.setattr(rpms, "CACHES", f"{tmp_path}/*/packages")
    monkeypatch.setattr(rpms, "repositories", lambda: repositories(str(tmp_path)))
    kept = [f"{tmp_path}/{name}-0123456789abcdef/packages/{package.name}" for name in ("site", "usual")]
    rpms._drop_unchecked({"libnccl": "2.28.9-1"})
    assert list(rpms.cached().values()) == kept[:1]
    shutil.copy(package, kept[1])
    (tmp_path / "dnf.conf").write_text("[main]\nbest=True\n")
    rpms._drop_unchecked({"libnccl": "2.28.9-1"})
    assert sorted(map(str, tmp_path.glob("*/packages/*"))) == kept


def test_a_package_of_a_repository_on_the_node_is_taken_from_there_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "all.repo").write_text("[epel]\nbaseurl=https://m/\n[here]\nbaseurl=file:///srv/repo\n")
    asked: list[Any] = []
    monkeypatch.setattr(rpms, "cached", dict)
    monkeypatch.setattr(rpms, "repositories", lambda: repositories(str(tmp_path)))
    monkeypatch.setattr(rpms, "run", lambda *_, **__: "")

    def download(names: list[str], folder: str, *more: str) -> None:
        asked.extend([names, more])
        Path(folder, "x.rpm").touch()

    monkeypatch.setattr(rpms, "_download", download)
    rpms.unpack("kmod-nvidia-open-dkms", "3:590.48.01-1.el9", str(tmp_path))
    assert asked == [["kmod-nvidia-open-dkms-3:590.48.01-1.el9"], ("--repo=here",)]
    (tmp_path / "all.repo").write_text("[epel]\nbaseurl=https://m/\n")
    with pytest.raises(Failed, match=r"no kmod-nvidia-open-dkms 3:590\.48\.01-1\.el9 with a valid"):
        rpms.unpack("kmod-nvidia-open-dkms", "3:590.48.01-1.el9", str(tmp_path))


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The transaction of a rollback, and the list of version locks."""
    locks, settings = tmp_path / "versionlock.list", tmp_path / "versionlock.conf"
    settings.write_text(f"[main]\nenabled = 1\nlocklist = {locks}\n")
    now = {
        "nvidia-driver-cuda": ["3:590.48.01-1.el9", "x86_64"],
        "libnccl": ["2.29.7-1", "x86_64"],
        "libnvidia-new": ["590.48.01-1.el9", "x86_64"],
        "site": ["2-1", "noarch"],
    }
    locks.write_text(
        "# locks\nnvidia-driver-cuda-3:590.48.01-1.el9.*\nlibnvidia-new-0:590.48.01-1.el9.*\nsite-0:2-1.*\n"
    )
    found: dict[str, Any] = {"locks": locks, "now": now}
    monkeypatch.setattr(versionlock, "SETTINGS", str(settings))
    monkeypatch.setattr(rpms, "installed", lambda: now)
    monkeypatch.setattr(dnf, "enabled_streams", lambda: ["nvidia-driver:590-open", "php:8.1"])
    monkeypatch.setattr(rpms, "run", lambda *_, **__: "nvidia-driver-cuda=3:580.95.05-1.el9\n")
    monkeypatch.setattr(rpms, "change", lambda command, own: found.update(command=command, own=own))
    return found


def record(**streams: Any) -> dict[str, Any]:
    """Return a record of packages and holds, with streams of modules if stated."""
    before = {"nvidia-driver-cuda": DRIVER, "libnccl": ["2.28.9-1", "x86_64"], "site": ["1-1", "noarch"]}
    return {"packages": before, "holds": [LOCK], **streams}


NAMES = {"nvidia-driver-cuda", "libnccl", "libnvidia-new"}


def test_a_rollback_is_one_transaction_of_kept_files_and_names(restored: dict[str, Any], pool: Path) -> None:
    kept = pool / "nvidia-driver-cuda-580.95.05-1.el9.x86_64.rpm"
    kept.write_text("kept")
    (pool / "libnccl-2.28.9-1.x86_64.rpm").write_text("damaged")
    stated = record(streams=["nvidia-driver:580-open"])
    moved = rpms.back(stated, NAMES, ["nvidia-driver"], str(pool), lambda path: path == str(kept))
    assert moved == ["libnccl", "nvidia-driver-cuda", "libnvidia-new"]
    command = restored["command"]
    assert list(command.lines) == [
        "module enable nvidia-driver:580-open",
        "install libnccl-2.28.9-1",
        "remove libnvidia-new",
        f"install {kept}",
        "run",
    ]
    assert "--cacheonly" not in command.options
    assert set(restored["own"]) == NAMES
    assert restored["locks"].read_text() == f"# locks\nsite-0:2-1.*\n{LOCK}\n"


def test_a_rollback_from_kept_files_needs_no_repository(restored: dict[str, Any], pool: Path) -> None:
    rpms.back(record(), NAMES, ["nvidia-driver"], str(pool), lambda path: True)
    assert "--cacheonly" in restored["command"].options
    assert {"nvidia-driver-cuda=3:580.95.05-1.el9", "libnvidia-new-"} <= set(restored["command"].words)


def test_where_nothing_moved_only_locks_are_restored(restored: dict[str, Any], pool: Path) -> None:
    restored["now"].update(record()["packages"])
    del restored["now"]["libnvidia-new"]
    assert rpms.back(record(), NAMES, ["nvidia-driver"], str(pool), lambda path: False) == []
    assert "command" not in restored
    assert LOCK in restored["locks"].read_text()


def test_an_upgrade_is_simulated_with_the_new_repositories_which_go_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    extra = tmp_path / "yum.repos.d/gpuprov-upgrade.repo"
    commands: list[Any] = []

    def fetch_packages(command: Any, *_: Any) -> Any:
        """Check that the new repository is there, record the command, and return two changes."""
        assert extra.read_text() == "[gpuprov-upgrade-nvidia]\n"
        commands.append(command)
        return {"libnccl": ("2.28.9-1", "2.29.7-1"), "site": ("1-1", "1-1")}

    monkeypatch.setattr(
        rpms, "installed", lambda: {"libnccl": ["2.28.9-1", "x86_64"], "old": ["1", "x86_64"]}
    )
    monkeypatch.setattr(dnf, "fetch_packages", fetch_packages)
    arguments = (
        {"libnccl": "2.29.7-1"},
        ["libnccl", "old", "gone"],
        {str(extra): "[gpuprov-upgrade-nvidia]\n"},
    )
    assert rpms.prepare(*arguments, ["nvidia-driver:590-open"]) == {"libnccl": ("2.28.9-1", "2.29.7-1")}
    assert list(commands[0].lines) == [
        "module enable nvidia-driver:590-open",
        "install libnccl-2.29.7-1",
        "remove old",
        "run",
    ]
    assert not extra.exists()

    def fails(*_: Any) -> None:
        raise DnfFailed("dnf would remove site")

    monkeypatch.setattr(dnf, "fetch_packages", fails)
    with pytest.raises(Failed, match="dnf: dnf would remove site"):
        rpms.prepare(*arguments, [])
    assert not extra.exists()


def test_versions_on_offer_have_no_epoch_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "libnccl|0:2.28.9-1|x86_64\nnvidia-driver-cuda|3:580.95.05-1.el9|x86_64\n"
    text += "kernel-devel|5.14.0-570.12.1.el9_6|x86_64\n"
    monkeypatch.setattr(rpms, "run_anyway", lambda *_, **__: (0, text, ""))
    assert rpms.offered(["libnccl"]) == {
        ("libnccl", "2.28.9-1"),
        ("nvidia-driver-cuda", "3:580.95.05-1.el9"),
        ("kernel-devel-5.14.0-570.12.1.el9_6.x86_64", "5.14.0-570.12.1.el9_6"),
    }
    monkeypatch.setattr(rpms, "run_anyway", lambda *_, **__: (1, text, ""))
    assert rpms.offered(["libnccl"]) == set()


def test_both_simulations_of_a_transaction_know_its_own_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate twice: a version lock of a package that moves is no reason to refuse."""
    seen: list[set[str]] = []
    monkeypatch.setattr(dnf, "fetch_packages", lambda _command, own, _seconds: seen.append(set(own)))
    monkeypatch.setattr(dnf, "transact", lambda _command, _residue, own=(): seen.append(set(own)))
    rpms.change(dnf.installation(["libnccl=2.28.9-1"], 0, True), ["libnccl"])
    assert seen == [{"libnccl"}, {"libnccl"}]


def test_a_killed_transaction_is_completed_before_packages_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Complete first: of a package in two versions, the comparison would see either."""
    steps: list[str] = []
    known = {"modules": [], "files": {}, "units": {}}
    for module, name, answer in (
        (lastgood, "read_document", known),
        (lastgood, "has_dpkg", False),
        (lastgood, "_wait_for_packages", None),
        (lastgood.modules, "builds_prevented", contextlib.nullcontext()),
        (lastgood.modules, "put_back", None),
        (lastgood.files, "put_back", []),
        (lastgood.files, "restore_units", []),
        (lastgood, "kept_sums", {}),
        (rpms, "complete", None),
        (lastgood, "_moved_since", set()),
        (rpms, "back", []),
    ):
        monkeypatch.setattr(module, name, lambda *_, n=name, a=answer: steps.append(n) or a)
    lastgood.restore("run", None, {"files": [], "excepted": "", "dnf_modules": []})
    assert steps.index("complete") < steps.index("_moved_since") < steps.index("back")
