"""Programs of an upgrade for nodes, run on this machine: exclusive work, managed files, restoration."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.apply.node import lease
from gpuprov.files.resources import share
from gpuprov.probe.node.base import Failed
from gpuprov.upgrade.managed import EXCEPTED, FILES
from gpuprov.upgrade.node import ahead, files, lastgood, main, packages


@pytest.fixture
def _own_lease(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have the lease program use a temporary folder."""
    monkeypatch.setattr(lease, "FOLDER", str(tmp_path))
    monkeypatch.setattr(lease, "PATH", str(tmp_path / "lease.json"))
    monkeypatch.setattr(lease, "RUN", str(tmp_path / "run"))


@pytest.mark.usefixtures("_own_lease")
def test_work_that_a_dead_controller_left_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    begun, may_end = threading.Event(), threading.Event()

    def work(who: str) -> None:
        """Record who works; the first one waits until it may end."""
        begun.set()
        if who == "1":
            assert may_end.wait(30)
        order.append(who)

    monkeypatch.setitem(main.ACTS, "restore", work)
    monkeypatch.setattr(main, "say", lambda nonce, answer: order.append("said"))
    question = {"act": "restore", "holds": None, "patience_s": 30, "nonce": ""}
    orphan = threading.Thread(target=main.main, args=[{**question, "arguments": ["1"]}])
    orphan.start()
    begun.wait()
    assert lease.take("two", "a@b", 60)["run"] == "two", "a lease need not wait"
    threading.Timer(0.1, may_end.set).start()
    main.main({**question, "arguments": ["2"]})
    orphan.join()
    assert order.index("1") < order.index("2")


@pytest.mark.usefixtures("_own_lease")
def test_work_that_comes_too_late_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse work if its run lost the lease while it waited for other work on the node."""
    done: list[str] = []
    said: list[dict[str, Any]] = []
    monkeypatch.setitem(main.ACTS, "restore", done.append)
    monkeypatch.setattr(main, "say", lambda nonce, answer: said.append(answer))
    for run in ("one", "two"):
        lease.take("two", "a@b", 60)
        main.main({"act": "restore", "arguments": [run], "holds": run, "patience_s": 30, "nonce": ""})
    lease.release("two")
    main.main({"act": "restore", "arguments": ["three"], "holds": "two", "patience_s": 30, "nonce": ""})
    assert done == ["two"]
    assert said == [
        {"error": "nothing was done: the node is leased by a@b, run two"},
        {"result": None},
        {"error": "nothing was done: the node is no longer leased to a run"},
    ]


def test_files_come_back_as_they_were(tmp_path: Path) -> None:
    """Check that changed and removed files and links are restored, and new ones removed, except backups."""
    changed, gone, link = tmp_path / "a.conf", tmp_path / "deep" / "b.conf", tmp_path / "c.conf"
    gone.parent.mkdir()
    changed.write_bytes(b"old\x00")
    changed.chmod(0o640)
    gone.write_text("gone")
    link.symlink_to("a.conf")
    patterns = [f"{tmp_path}/*.conf", f"{tmp_path}/deep/*.conf"]
    before = files.files(patterns, "~$")
    changed.write_text("new")
    gone.unlink()
    gone.parent.rmdir()
    link.unlink()
    (tmp_path / "added.conf").write_text("new")
    (tmp_path / "backup.conf~").write_text("ansible's")
    assert len(files.put_back(before, patterns, "~$")) == 4
    assert files.files(patterns, "~$") == before
    assert (changed.read_bytes(), oct(changed.stat().st_mode)[-3:]) == (b"old\x00", "640")
    assert (tmp_path / "backup.conf~").exists()
    assert files.put_back(before, patterns, "~$") == []


def test_files_of_packages_are_named_as_apt_names_them() -> None:
    assert packages.file_name("libcuda1:amd64", "1:535.1-2", "amd64") == "libcuda1_1%3a535.1-2_amd64.deb"


# Files that roles write and that are not state of an upgrade are in EXCEPTED: runtime files, and files that
# have their own restoration.


def _written(tasks: Any) -> Iterator[str]:
    """Yield the paths that tasks pass to `gpuprov_files` by name, including those in blocks."""
    for task in tasks or []:
        for part in ("block", "rescue", "always"):
            yield from _written(task.get(part))
        files = task.get("gpuprov.gpuprov.gpuprov_files", {}).get("files", [])
        yield from (each["path"] for each in files if isinstance(each, dict))


def test_every_file_of_a_role_is_in_the_last_good_set() -> None:
    found = {
        path: tasks
        for tasks in sorted(share("roles").glob("*/tasks/*.yml"))
        for path in _written(yaml.safe_load(tasks.read_text()))
        if not path.startswith("{{")
    }
    assert len(found) > 8
    for path, tasks in found.items():
        known = any(fnmatch(path, pattern) for pattern in FILES)
        assert known or re.search(EXCEPTED, path), f"{tasks}: {path}"


def test_scripts_of_packages_run_while_no_user_can_open_debconfs_database(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Close it, as a lock of any user on it would leave packages half-configured, also in a rollback."""
    database, settings = tmp_path / "config.dat", tmp_path / "debconf.conf"
    database.touch(0o644)
    settings.write_text(f"Name: config\nDriver: File\nMode: 644\nFilename: {database}\n")
    monkeypatch.setenv(packages.debconf.VARIABLE, str(settings))
    monkeypatch.setattr(packages.debconf, "TEMPORARY", str(tmp_path))
    looks = f'stat -c %a {database}; grep ^Mode "${packages.debconf.VARIABLE}"'
    answer = packages.configuring("sh", "-c", looks, seconds=10, env=dict(packages.APART["env"]))
    assert answer == (0, "600\nMode: 600\n", "")
    assert database.stat().st_mode & 0o777 == 0o644


def test_apt_is_kept_from_debconfs_users_only_where_scripts_run(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[tuple[str, ...]] = []
    monkeypatch.setattr(packages, "configuring", lambda *words, **_: (closed.append(words), (0, "", ""))[1])
    monkeypatch.setattr(packages, "run_anyway", lambda *_words, **_: (0, "", ""))
    for words in (("update",), ("install", "--simulate", "x"), ("install", "--download-only", "x")):
        packages.apt(*words)
    assert closed == []
    packages.apt("install", "x")
    assert [words[-2:] for words in closed] == [("install", "x")]


def test_kept_packages_are_read_by_root_and_new_ones_go_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Let apt read kept packages as root, because their folder is private; its default is a separate user."""
    kept = tmp_path / "libcuda1_1_amd64.deb"
    kept.write_text("kept")
    said: list[str] = []
    tried: list[list[str]] = []
    monkeypatch.setattr(lastgood, "POOL", str(tmp_path))
    monkeypatch.setattr(lastgood, "kept_sums", lambda: {kept.name: packages.digest(str(kept))})
    monkeypatch.setattr(lastgood, "installed", lambda: {"libcuda1": ["2", "amd64"], "pin-2": ["2", "all"]})
    monkeypatch.setattr(lastgood, "_completely_installed", lambda: {"libcuda1", "pin-2"})
    monkeypatch.setattr(lastgood, "run", lambda *words, **_: "")
    monkeypatch.setattr(lastgood, "simulated", lambda words, own: tried.extend([words, sorted(own)]))
    monkeypatch.setattr(lastgood, "apt", lambda *words: said.extend(words))
    before = {"libcuda1": ["1", "amd64"], "pin-1": ["1", "all"]}
    moved = lastgood._packages_back({"packages": before, "holds": []}, {"libcuda1", "pin-1", "pin-2"})
    assert moved == ["libcuda1", "pin-1", "pin-2"]
    assert said == ["install", "--option=APT::Sandbox::User=root", str(kept), "pin-1=1", "pin-2-"]
    assert tried == [said[2:], ["libcuda1", "libcuda1", "pin-1", "pin-1", "pin-2"]]


def test_a_package_that_the_new_lock_has_no_more_is_named_to_apt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Name obsolete packages to apt, which would not replace a held one; a pin's name has its version."""
    tried: list[list[str]] = []

    def refuse(targets: list[str], own: list[str]) -> None:
        tried.extend([targets, own])
        raise Failed("enough")

    for name in ("HOME", "POOL"):
        monkeypatch.setattr(packages, name, str(tmp_path))
    asked: list[str] = []
    monkeypatch.setattr(ahead, "apt", lambda *words: asked.append(words[0]))
    monkeypatch.setattr(ahead, "installed", lambda: {"libcuda1:amd64": ["1", "amd64"], "pin-1": ["1", "all"]})
    monkeypatch.setattr(packages, "simulated", refuse)
    with pytest.raises(Failed, match="enough"):
        ahead.fetch(
            "run", {"libcuda1": "2", "pin-2": "2"}, ["libcuda1", "pin-1", "gone"], None, [], shares=False
        )
    assert tried == [["libcuda1=2", "pin-2=2", "pin-1-"], ["libcuda1", "pin-1", "gone"]]
    assert asked == ["update"]


def test_what_is_of_no_lock_is_never_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    said = (
        "Inst libcuda1 [1] (2 NVIDIA [amd64])\nRemv pin-1 [1]\nRemv libcuda1:i386 [1]\nRemv site-tool [3]\n"
    )
    monkeypatch.setattr(packages, "apt", lambda *_: said)
    with pytest.raises(Failed, match=r"apt would remove site-tool$"):
        packages.simulated(["libcuda1=2"], ["libcuda1:amd64", "pin-1"])
    assert packages.simulated(["libcuda1=2"], ["libcuda1", "pin-1", "site-tool"]) == {
        "libcuda1": ("1", "2"),
        "pin-1": ("1", None),
        "libcuda1:i386": ("1", None),
        "site-tool": ("3", None),
    }


def test_a_modules_source_is_looked_for_under_every_distributions_names() -> None:
    with_source = ("nvidia-kernel-open-dkms", "nvidia-dkms-580-server-open", "nvidia-kernel-source-580-open")
    assert all(map(ahead.SOURCE.search, with_source))
    without = ("nvidia-headless-no-dkms-580-server", "linux-modules-nvidia-580-server-generic", "libcuda1")
    assert not any(map(ahead.SOURCE.search, without))


class Apt:
    """Fake of the programs of a trial build: what they were called with."""

    def __init__(self, serves: str) -> None:
        self.serves = serves
        self.said: list[tuple[str, ...]] = []

    def run(self, *words: str, seconds: float = 0) -> str:
        """Record a command, and return the architecture if that is the question."""
        self.said.append(words)
        return "amd64\n" if "--print-architecture" in words else ""

    def run_anyway(self, *words: str, seconds: float = 0, **more: Any) -> tuple[int, str, str]:
        """Record a download, and write its file; fail if apt serves none."""
        self.said.append(words)
        if not self.serves:
            return 100, "", "E: Can't find a source to download\n"
        (Path(words[words.index("sh") + 3]) / self.serves).write_text("package")
        return 0, "", ""


@pytest.fixture
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have the programs use a temporary folder and cache."""
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(ahead, "HOME", str(tmp_path))
    monkeypatch.setattr(ahead, "ARCHIVES", str(tmp_path / "cache"))


DKMS = {"nvidia-dkms": "1:2"}


@pytest.mark.usefixtures("_own_home")
@pytest.mark.parametrize("architecture", ["amd64", "all"])
@pytest.mark.parametrize("cached", [True, False])
def test_a_modules_source_is_in_apts_cache_or_is_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, architecture: str, cached: bool
) -> None:
    """Find the package also if apt's cache does not have it, as from a `file:` repository."""
    file = f"nvidia-dkms_1%3a2_{architecture}.deb"
    if cached:
        (tmp_path / "cache" / file).write_text("package")
    apt = Apt(file)
    monkeypatch.setattr(ahead, "run", apt.run)
    monkeypatch.setattr(packages, "run_anyway", apt.run_anyway)
    assert ahead._build_ahead(DKMS, ["running"], shares=False) == []
    [extracted] = [words[2] for words in apt.said if words[0] == "dpkg-deb"]
    assert extracted == str(tmp_path / ("cache" if cached else "ahead") / file)
    downloaded = [words[-1] for words in apt.said if "download" in words]
    assert downloaded == ([] if cached else ["nvidia-dkms=1:2"])


@pytest.mark.usefixtures("_own_home")
@pytest.mark.parametrize(
    ("serves", "reason"),
    [
        ("", r"^nvidia-dkms=1:2 cannot be fetched \(E: Can't find a source to download\)$"),
        ("other.deb", "not as nvidia-dkms_1%3a2_amd64.deb or nvidia-dkms_1%3a2_all.deb$"),
    ],
)
def test_a_modules_source_that_cannot_be_fetched_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, serves: str, reason: str
) -> None:
    apt = Apt(serves)
    monkeypatch.setattr(ahead, "run", apt.run)
    monkeypatch.setattr(packages, "run_anyway", apt.run_anyway)
    with pytest.raises(Failed, match=reason):
        ahead._build_ahead(DKMS, ["running"], shares=False)


def test_a_package_that_a_rollback_needs_and_cannot_get_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {"HOME": str(tmp_path), "POOL": str(tmp_path), "ARCHIVES": str(tmp_path)}.items():
        monkeypatch.setattr(packages, name, value)
    monkeypatch.setattr(packages, "installed", lambda: {"libcuda1": ["1", "amd64"]})
    said = {"sh": "E: no source\n", "apt-cache": "E: No packages found\n", "dpkg-deb": ""}
    monkeypatch.setattr(packages, "run_anyway", lambda program, *_, **__: (100, "", said[program]))
    with pytest.raises(
        Failed, match=r"^no rollback possible: libcuda1=1 cannot be fetched \(E: no source\)$"
    ):
        packages.keep({"libcuda1": "1"})
    (tmp_path / "libcuda1_1_amd64.deb").touch()
    said["apt-cache"] = "E: Unable to mkstemp /tmp/x - GetTempFile (28: No space left on device)\n"
    with pytest.raises(Failed, match=r"^apt-cache: Unable to mkstemp /tmp/x"):  # its checksum is not known
        packages.keep({"libcuda1": "1"})


def test_others_cannot_read_the_records_which_have_the_content_of_managed_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Check also a folder that an earlier version has left open."""
    home = tmp_path / "lastgood"
    for module in (packages, lastgood):
        monkeypatch.setattr(module, "HOME", str(home))
    monkeypatch.setattr(packages, "POOL", str(home / "packages"))
    home.mkdir()
    home.chmod(0o755)
    for name, value in {"installed": {}, "holds": [], "streams": [], "modules.modules": {}}.items():
        monkeypatch.setattr(f"{lastgood.__name__}.{name}", lambda *_, value=value: value)
    lastgood.record("run", "lock", {"files": [], "excepted": "", "units": [], "dnf_modules": []})
    modes = {path.name: path.stat().st_mode & 0o777 for path in [home, *home.iterdir()]}
    assert modes == {"lastgood": 0o700, "packages": 0o700, "run.json": 0o600}
