"""Programs that the probe looks for among the processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuprov.probe.node import host, people
from gpuprov.probe.node.base import text_in


def _running(*argv: str) -> subprocess.Popen[bytes]:
    """Start a program and wait until it has printed a line."""
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    return process


def test_a_name_that_a_process_chose_is_no_program(tmp_path: Path) -> None:
    """Check a process that calls itself as a program that a fault is about, and a file of that name."""
    call = "open('/proc/self/comm', 'w').write('gpuprov-named'); print(1, flush=True); input()"
    with _running(sys.executable, "-c", call) as process:
        assert text_in(f"/proc/{process.pid}/comm") == "gpuprov-named"
        assert not host._runs(people.People(), "gpuprov-named")
        process.kill()
    if os.geteuid():
        pytest.skip("needs a file of root's")
    own = tmp_path / "gpuprov-named"
    shutil.copy(shutil.which("cat") or "", own)
    with subprocess.Popen([own], stdin=subprocess.PIPE) as process:
        for _ in range(100):
            if text_in(f"/proc/{process.pid}/comm") == own.name:
                break
            time.sleep(0.02)
        assert host._runs(people.People(), "opensm", own.name)
        os.chown(own, 65534, -1)
        assert not host._runs(people.People(), own.name)
        process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
@pytest.mark.parametrize(("user", "counts"), [("65534", False), ("0", True)])
def test_a_name_that_a_user_mounted_over_a_file_of_root_is_no_program(
    tmp_path: Path, user: str, counts: bool
) -> None:
    """Check a mount in a namespace of its own, which a user can have; a container of root has one, too."""
    own = tmp_path / "gpuprov-mounted"
    own.touch()
    own.chmod(0o755)
    call = 'mount --bind "$(readlink -f "$(command -v sleep)")" "$0" && exec setpriv --reuid "$1" "$0" 60'
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", call, own, user]) as process:
        for _ in range(200):
            if text_in(f"/proc/{process.pid}/comm") == own.name:
                break
            time.sleep(0.02)
        if process.poll() is not None:
            pytest.skip("root may not mount here")
        assert text_in(f"/proc/{process.pid}/comm") == own.name
        assert host._runs(people.People(), own.name) is counts
        process.kill()


@pytest.mark.parametrize(("user", "counts"), [(0, False), (1000, True)])
def test_a_file_that_root_cannot_look_at_is_a_users(
    user: int, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a program on a file system that a user has mounted, which refuses everybody else."""

    def refused(path: str) -> os.stat_result:
        raise PermissionError(path)

    monkeypatch.setattr(host, "names_in", lambda _: ["7"])
    monkeypatch.setattr(host, "text_in", lambda _: "opensm")
    system = SimpleNamespace(
        readlink=lambda _: "/home/user/mounted/opensm", stat=refused, geteuid=lambda: user
    )
    monkeypatch.setattr(host, "os", system)
    assert host._runs(people.People(), "opensm") is counts


def test_programs_whose_files_do_not_answer_hide_none_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait as for a file system that a user has mounted and lets others use: once for its user."""
    ended, asked = threading.Event(), []

    def wait(path: str) -> os.stat_result:
        asked.append(path)
        if path not in ("/proc/9/exe", "/proc/10/exe"):
            ended.wait(20)
            raise PermissionError(path)
        return os.stat_result((0,) * 10)

    users = {"7": "1000", "8": "1000", "9": "0", "10": "1001"}
    status = {f"/proc/{pid}/status": f"Uid:\t{user}\n" for pid, user in users.items()}
    system = SimpleNamespace(readlink=lambda _: "/usr/sbin/opensm", stat=wait, lstat=str, geteuid=int)
    system.path = SimpleNamespace(samestat=lambda *_: True)
    monkeypatch.setattr(host, "os", system)
    monkeypatch.setattr(host, "text_in", lambda _: "opensm")
    for module in (host, people):
        monkeypatch.setattr(module, "read_or_none", lambda path, limit=0: status.get(path))
    for other in ("9", "10"):
        monkeypatch.setattr(host, "names_in", lambda _, other=other: ["7", "8", other])
        asked.clear()
        assert host._runs(people.People(), "opensm")
        assert asked == ["/proc/7/exe", f"/proc/{other}/exe"]
    ended.set()
