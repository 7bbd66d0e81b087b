"""Reading of files that users of a node can replace: the probe, as root, opens regular files only."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shlex
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuprov.probe.node import base, hardware, software, system
from gpuprov.probe.parse.hardware import parse_mounts
from gpuprov.verify.observers import user_files

NOBODY = 65534
VERSION = "__version__ = '2.4.0'\ncuda: Optional[str] = '12.4'\n"
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can create links of another user")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Home folder of a user in place of all that the probe looks through for frameworks."""
    folder = tmp_path / "home/eve"
    folder.mkdir(parents=True)
    monkeypatch.setattr(software, "PYTHON_FOLDERS", (f"{tmp_path}/home/*/*/lib/python3*/site-packages",))
    return folder


def packages(home: Path, name: str = "venv") -> Path:
    """Return a folder of packages, created with that of torch."""
    folder = home / name / "lib/python3.11/site-packages"
    (folder / "torch").mkdir(parents=True)
    return folder


def link(path: Path, target: Path) -> None:
    """Create a link that belongs to another user."""
    path.symlink_to(target)
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


@contextlib.contextmanager
def device(path: Path) -> Iterator[list[bool]]:
    """Create a FIFO in place of a device; the yielded list has one item if it is opened for reading."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    opened: list[bool] = []
    ended = threading.Event()

    def serve() -> None:
        """Write a version into the pipe when a program reads it, and record this."""
        handle = os.open(path, os.O_WRONLY)
        if not ended.is_set():
            opened.append(True)
            os.write(handle, VERSION.encode())
        os.close(handle)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield opened
    finally:
        ended.set()
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        thread.join()
        os.close(reader)


def found_with_limit() -> object:
    """Return the result of the collector, which must not wait for a writer."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(software.frameworks({})), daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive(), "the probe waits for a user's file"
    return found[0]


def test_an_environment_is_found(home: Path) -> None:
    (packages(home) / "torch/version.py").write_text(VERSION)
    [row] = software.frameworks({})
    assert (row["name"], row["version"], row["cuda"]) == ("torch", "2.4.0", "12.4")


def test_a_home_with_many_entries_takes_little_memory_and_hides_no_folder_of_root(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Look at some entries of a folder: a user can create so many that the health check is killed for its
    memory.
    """
    (packages(tmp_path / "opt") / "torch/version.py").write_text(VERSION)
    monkeypatch.setattr(
        software,
        "PYTHON_FOLDERS",
        (f"{tmp_path}/opt/*/lib/python3*/site-packages", *software.PYTHON_FOLDERS),
    )
    for number in range(60):
        (packages(home, f"a{number:02}") / "torch/version.py").write_text(VERSION)
    found = software.frameworks({})
    assert [str(tmp_path / "opt") in row["folder"] for row in found].count(True) == 1  # type: ignore[index]
    for number in range(40_000):
        (home / f"{number:05}{'x' * 240}").touch()
    tracemalloc.start()
    assert len(software.folders_in(str(home), "*")) <= 60
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_many_folders_without_packages_end_the_search_and_not_the_answer(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let a second pass for each look at the clock: the folders of root were found before."""
    (packages(tmp_path / "opt") / "torch/version.py").write_text(VERSION)
    own = f"{tmp_path}/opt/*/lib/python3*/site-packages"
    monkeypatch.setattr(software, "SEARCH_S", 40.0)
    (packages(tmp_path / "home/zoe") / "torch/version.py").write_text(VERSION)
    others = software.PYTHON_FOLDERS
    monkeypatch.setattr(software, "PYTHON_FOLDERS", (own, f"{tmp_path}/home/*/*/*/site-packages", *others))
    seconds = iter(range(10_000))
    clock = SimpleNamespace(monotonic=lambda: float(next(seconds)))
    monkeypatch.setattr(software, "time", clock)
    for number in range(500):
        (home / f"a{number // 5}/b{number}").mkdir(parents=True)
    left_out, zoes, roots = software.frameworks({})
    assert not left_out["name"]
    assert str(tmp_path / "opt") in roots["folder"]
    assert str(tmp_path / "home/zoe") in zoes["folder"]
    assert next(seconds) < 200


def test_many_environments_of_a_user_hide_none_of_another(home: Path, tmp_path: Path) -> None:
    """Look at a home with many environments, and at another with many folders before its only one."""
    for number in range(60):
        (packages(home, f"a{number:02}") / "torch/version.py").write_text(VERSION)
    for number in range(600):
        (tmp_path / f"home/zoe/a{number}").mkdir(parents=True)
    (packages(tmp_path / "home/zoe") / "torch/version.py").write_text(VERSION)
    found = software.frameworks({})
    assert [row["folder"] for row in found if "zoe" in row["folder"]]
    assert len(found) <= software.ENVIRONMENTS_AT_MOST + 1
    assert [row["name"] for row in found].count("") == 1


@pytest.mark.parametrize("text", ["9" * 60_000, "\xff" * 60_000, "2.4 .0", "x" * 65])
def test_a_text_that_is_no_version_is_not_returned(home: Path, text: str) -> None:
    (packages(home) / "torch/version.py").write_text(f"__version__ = '{text}'\n", "latin-1")
    (packages(home, "b") / "torch/version.py").write_text(VERSION.replace("12.4", text), "latin-1")
    [row] = software.frameworks({})
    assert (row["version"], row["cuda"]) == ("2.4.0", None)


def test_a_pipe_is_not_opened(home: Path) -> None:
    os.mkfifo(packages(home) / "torch/version.py")
    assert found_with_limit() == []


@ROOT
@pytest.mark.parametrize("part", ["torch/version.py", "torch", "."])
def test_a_link_of_a_user_opens_no_device(home: Path, tmp_path: Path, part: str) -> None:
    """Cover a link that is the file, a folder above it, or the environment's folder of packages."""
    folder = packages(home)
    (folder / "torch").rmdir()
    if part == ".":
        folder.rmdir()
    elif part == "torch/version.py":
        (folder / "torch").mkdir()
    with device(tmp_path / "elsewhere/torch/version.py") as opened:
        link(folder / part, tmp_path / "elsewhere" / part)
        assert found_with_limit() == []
        assert not opened


@ROOT
def test_a_link_to_what_tensorflow_was_built_with_is_not_followed(home: Path, tmp_path: Path) -> None:
    folder = packages(home)
    (folder / "tensorflow-2.16.0.dist-info").mkdir()
    (folder / "tensorflow/python/platform").mkdir(parents=True)
    with device(tmp_path / "device") as opened:
        link(folder / "tensorflow/python/platform/build_info.py", tmp_path / "device")
        assert found_with_limit() == [
            {"folder": str(folder), "name": "tensorflow", "version": "2.16.0", "cuda": None}
        ]
        assert not opened


@ROOT
def test_a_link_of_a_user_reads_no_file_of_root(home: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(VERSION)
    link(packages(home) / "torch/version.py", secret)
    assert software.frameworks({}) == []


def test_a_link_of_root_is_followed(home: Path, tmp_path: Path) -> None:
    """Folders of the distribution have links, and homes may be on another disk."""
    (packages(tmp_path / "disk") / "torch/version.py").write_text(VERSION)
    (home / "venv").symlink_to("../../disk/venv")
    (home / "again").symlink_to(tmp_path / "disk/venv")
    assert [row["version"] for row in software.frameworks({})] == ["2.4.0"]


def test_a_huge_file_is_read_up_to_the_limit(home: Path) -> None:
    path = packages(home) / "torch/version.py"
    path.write_text(VERSION)
    os.truncate(path, 1 << 40)
    [row] = software.frameworks({})
    assert row["version"] == "2.4.0"
    assert len(base.read_of_users(str(path)) or "") == 65536


def test_a_text_without_an_end_is_searched_in_linear_time(home: Path) -> None:
    (packages(home) / "torch/version.py").write_text("__version__:\n" * 5000)
    begun = time.process_time()
    assert software.frameworks({}) == []
    assert time.process_time() - begun < 1


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert base.read_of_users(str(tmp_path / "a")) is None
    assert base.read_of_users(str(tmp_path / "missing/x")) is None
    before = len([*Path("/proc/self/fd").iterdir()])
    base.read_of_users(str(tmp_path / "a"))
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_nccls_file_of_a_login_is_no_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system.os.path, "expanduser", lambda path: str(tmp_path))
    os.mkfifo(tmp_path / ".nccl.conf")
    program = (
        "import sys; sys.path.append('plugins/module_utils'); from gpuprov.probe.node import system;"
        "system.os.path.expanduser = lambda path: sys.argv[1];"
        "print(sorted(system.nccl({'login': 'eve'})['own']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=20, check=True
    )
    assert str(tmp_path) not in done.stdout
    (tmp_path / ".nccl.conf").unlink()
    (tmp_path / ".nccl.conf").write_text("NCCL_DEBUG=INFO\n")
    assert system.nccl({"login": "eve"})["own"][f"{tmp_path}/.nccl.conf"] == "NCCL_DEBUG=INFO\n"


def ask(command: str, path: Path) -> bytes:
    """Return what a command of `verify` prints about a file."""
    argv = ["/bin/sh", "-c", command % shlex.quote(str(path))]
    return subprocess.run(argv, capture_output=True, timeout=10, check=False).stdout


@ROOT
@pytest.mark.parametrize(
    "kind", ["file", "pipe", "link", "link of root", "folder of a user", "folder", "absent"]
)
def test_both_witnesses_read_and_hash_the_same_files(tmp_path: Path, kind: str) -> None:
    """Compare the commands of `verify`, independent ones, with the probe."""
    path, target = tmp_path / "place/.nccl.conf", tmp_path / "target/.nccl.conf"
    path.parent.mkdir()
    target.parent.mkdir()
    target.write_text("NCCL_DEBUG=INFO\n# a comment\n")
    if kind == "file":
        target.rename(path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        link(path, target)
    elif kind == "link of root":
        path.symlink_to("../target/.nccl.conf")
    elif kind == "folder of a user":
        path.parent.rmdir()
        link(path.parent, target.parent)
    elif kind == "folder":
        path.mkdir()
    content = b"NCCL_DEBUG=INFO\n# a comment\n" if kind in ("file", "link of root") else b""
    assert ask(user_files.TEXT, path) == content == (base.bytes_of_users(str(path), 99) or b"")
    expected = hashlib.sha256(content).hexdigest() if content else None
    assert (ask(user_files.CHECKSUM, path).decode().strip() or None) == expected
    assert system._file(str(path))["sha256"] == expected


@ROOT
@pytest.mark.parametrize("witness", ["probe", "verify"])
def test_a_link_that_changes_leads_to_no_device(tmp_path: Path, witness: str) -> None:
    """Replace a file and a link to a pipe by each other, while root hashes what the name leads to."""
    path, plain = tmp_path / "gpuprov.prom", tmp_path / "plain"
    plain.touch()
    ended = threading.Event()

    def swap() -> None:
        """Change the link between a device and a file again and again, until the end."""
        for number in itertools.count():
            link(tmp_path / "new", tmp_path / "watchdog" if number % 2 else plain)
            (tmp_path / "new").rename(path)
            if ended.is_set():
                return

    with device(tmp_path / "watchdog") as opened:
        threading.Thread(target=swap, daemon=True).start()
        try:
            for _ in range(3000 if witness == "probe" else 10):
                if witness == "probe":
                    system._file(str(path))
                else:
                    ask(user_files.CHECKSUM, path)
        finally:
            ended.set()
    assert not opened


def test_a_libcuda_where_users_can_write_is_none_of_the_logins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave out a folder of LD_LIBRARY_PATH in which a user chooses the version that logins take."""
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o777)
    (folder / "libcuda.so.300.1").touch()
    (folder / "libcuda.so.1").symlink_to("libcuda.so.300.1")
    profile = tmp_path / "site.sh"
    profile.write_text(f"export LD_LIBRARY_PATH={folder}:/usr/local/x\n")
    monkeypatch.setattr(software, "LOGIN_FILES", [str(profile)])
    monkeypatch.setattr(software, "LOGIN_PATTERNS", [])
    assert list(software._led()) == []


def test_a_place_that_root_alone_decides_is_led_to(tmp_path: Path) -> None:
    assert base.path_of_root("/etc/passwd") == "/etc/passwd"
    assert base.path_of_root("//etc/passwd") == "/etc/passwd"
    assert base.path_of_root("/etc/none") is None
    (tmp_path / "file").touch()  # below /tmp, in which each user can write
    assert base.path_of_root(str(tmp_path / "file")) is None


def mount_table(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """Put a table in place of this machine's /proc/mounts."""
    (folder / "mounts").write_bytes(text.encode())
    monkeypatch.setattr(base, "MOUNTS", str(folder / "mounts"))


def test_mounts_of_a_user_push_out_none_of_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Mount as often as fusermount permits, with sources and places as long as the kernel permits."""
    blanks, options = "\\040" * 4000, "rw,nosuid,nodev,relatime,user_id=1000,group_id=1000"
    long = "".join(f"/dev/\v\r{n}:{blanks} /home/eve/{blanks} fuse.x {options} 0 0\n" for n in range(300))
    root = "/dev/sda1 / ext4 rw 0 0\n"
    later = "/dev/sdb /scratch xfs ro 0 0\nceph /c fuse.ceph rw,user_id=0,group_id=0 0 0\n"
    mount_table(monkeypatch, tmp_path, root + long + later)
    assert [row[1] for row in base.mounted()] == ["/", "/scratch", "/c"]
    assert hardware.scratch({"scratch": ["/scratch"]})["/scratch"]["filesystem"] == "xfs"
    assert hardware.mounts({})["text"] + "\n" == root + later.partition("ceph")[0]


@pytest.mark.parametrize("end", ["\r", "\v", "\x1c", "\u2028", "\u3000"])
def test_the_name_of_a_user_s_mount_is_neither_a_line_nor_a_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str
) -> None:
    """Check characters that fusermount permits in a source: it could state a mounted scratch, or no row."""
    fuse = "fuse.x rw,user_id=0,group_id=0 0 0"  # of a user they are left out
    forged = f"x\v/dev/sdb{end}/scratch{end}xfs{end}rw /home/eve/m {fuse}"
    text = f"/dev/sda1 / ext4 rw 0 0\n{forged}\n:\v: /home/eve/n {fuse}\n"
    mount_table(monkeypatch, tmp_path, text)
    assert [row[1] for row in base.mounted()] == ["/", "/home/eve/m", "/home/eve/n"]
    assert hardware.scratch({"scratch": ["/scratch"]})["/scratch"]["filesystem"] is None
    kept = hardware.mounts({})["text"]
    assert kept.startswith("/dev/sda1 / ext4 rw 0 0")
    assert set(parse_mounts(text)) == {"/", "/home/eve/m", "/home/eve/n"}
