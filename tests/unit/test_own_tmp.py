"""Programs with an empty /tmp and /var/tmp of their own."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import gpuprov_own_tmp
import pytest
from gpuprov_own_tmp import with_own_tmp

LIST = "echo x >/tmp/x && echo y >/var/tmp/y && ls -A /tmp /var/tmp; env"


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs have folders of their own in this test."""
    monkeypatch.setattr(gpuprov_own_tmp, "LIBC", ctypes.CDLL(None))


@pytest.fixture
def foreign() -> Iterator[Path]:
    """A file in /tmp."""
    with tempfile.NamedTemporaryFile(dir="/tmp") as file:
        yield Path(file.name)


def said(environment: dict[str, str]) -> list[str]:
    """Return the lines that a program prints about its folders and its environment."""
    done = subprocess.run(
        ["sh", "-c", LIST], capture_output=True, text=True, check=True, **with_own_tmp(environment)
    )
    return done.stdout.splitlines()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.usefixtures("own", "foreign")
def test_folders_are_empty_writable_and_gone_afterwards() -> None:
    lines = said({"PATH": os.environ["PATH"], "TMPDIR": "/tmp/user/0", "LANG": "C"})
    assert lines[: lines.index("/var/tmp:") + 2] == ["/tmp:", "x", "", "/var/tmp:", "y"]
    assert "LANG=C" in lines
    assert not any(line.startswith("TMPDIR=") for line in lines), "a folder that is not there"
    assert not os.path.lexists("/var/tmp/y")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.usefixtures("own")
def test_everybody_may_write_and_nobody_gets_devices_or_the_rights_of_others() -> None:
    command = ["sh", "-c", "stat -c %a /tmp /var/tmp; grep -c 'tmp tmpfs .*nosuid,nodev' /proc/self/mounts"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, **with_own_tmp())
    assert done.stdout.split()[:2] == ["1777", "1777"]
    assert int(done.stdout.split()[2]) >= 2


@pytest.mark.parametrize("libc", [None, "refusing"])
def test_a_program_runs_with_the_nodes_folders_where_nothing_may_be_mounted(
    monkeypatch: pytest.MonkeyPatch, foreign: Path, libc: str | None
) -> None:
    class Refusing:
        """A C library whose calls fail, as in a container."""

        def unshare(self, _flags: int) -> int:
            return -1

    monkeypatch.setattr(gpuprov_own_tmp, "LIBC", Refusing() if libc else None)
    command = ["ls", str(foreign)]
    assert subprocess.run(command, check=False, **with_own_tmp()).returncode == 0
