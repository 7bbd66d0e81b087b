"""One initramfs per transaction: requests from packages' scripts, and the time when it is made."""

from __future__ import annotations

from pathlib import Path

import gpuprov_apt as apt
import gpuprov_initramfs as initramfs
import pytest

SCRIPTS = "update-initramfs -u; update-initramfs -c -k 6.1.0-57-amd64; update-initramfs -u"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an apt-get that runs `scripts` as dpkg does, and a recording update-initramfs."""
    made = tmp_path / "made"
    real = program(tmp_path / "sbin/update-initramfs", f'test ! -e {tmp_path}/broken && echo "$*" >>{made}')
    program(
        tmp_path / "bin/apt-get",
        f"""\
        for word; do case $word in
            --option=DPkg::Path=*) PATH=${{word#*Path=}};;
            --simulate) echo simulated >>{tmp_path}/resolved; cat {tmp_path}/simulated 2>/dev/null; exit 0;;
            --no-remove) grep -qs Remv {tmp_path}/simulated || continue
                echo 'E: Packages need to be removed but remove is disabled.' >&2; exit 100
        esac; done
        echo run >>{tmp_path}/resolved
        . {tmp_path}/scripts""",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(initramfs, "PROGRAM", str(real))
    monkeypatch.setattr(initramfs, "SYSTEM_PATH", f"{tmp_path}/sbin:/usr/bin:/bin")
    monkeypatch.setattr(initramfs, "FOLDER", str(tmp_path / "lib/scripts-path"))
    monkeypatch.setattr(initramfs, "OWED", str(tmp_path / "lib/owed"))
    (tmp_path / "scripts").write_text(SCRIPTS)
    return tmp_path


def program(path: Path, text: str) -> Path:
    """Write a shell script that can be executed, and return its path."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def made(node: Path) -> list[str]:
    """Return the kernels for which an initramfs was made; [] if none."""
    there = node / "made"
    return there.read_text().splitlines() if there.exists() else []


def test_the_newest_is_made_once_at_the_end_and_a_named_one_at_once(node: Path) -> None:
    apt.transact(["install", "a"], [])
    assert made(node) == ["-c -k 6.1.0-57-amd64", "-u"]
    assert list((node / "lib").iterdir()) == []


def test_a_transaction_that_has_changed_since_its_simulation_is_refused(node: Path) -> None:
    """Let the lists change after the download: apt would remove another package without a question."""
    (node / "simulated").write_text("Remv site-agent [1-1]\nInst a (2-1 site [amd64])\n")
    with pytest.raises(apt.Failed, match="apt would remove site-agent"):
        apt.transact(["install", "a"], [], {"a"})
    assert made(node) == []
    assert (node / "resolved").read_text() == "simulated\n"


def test_a_transaction_is_resolved_once_unless_it_removes_packages(node: Path) -> None:
    apt.transact(["install", "a"], [])
    assert (node / "resolved").read_text() == "run\n"
    (node / "simulated").write_text("Remv b [1-1]\nInst a (2-1 site [amd64])\n")
    (node / "resolved").unlink()
    apt.transact(["install", "a"], [], {"a", "b"})
    apt.transact(["install", "a", "b-"], [], {"a", "b"})
    assert (node / "resolved").read_text() == "simulated\nrun\n" * 2


def test_none_is_made_where_no_script_asks(node: Path) -> None:
    (node / "scripts").write_text(":")
    apt.transact(["install", "a"], [])
    assert made(node) == []


def test_after_a_transaction_that_fails_it_is_made_and_apts_word_counts(node: Path) -> None:
    (node / "scripts").write_text("update-initramfs -u; echo E: no room >&2; exit 100")
    with pytest.raises(apt.Failed, match="no room"):
        apt.transact(["install", "a"], [])
    assert made(node) == ["-u"]


def test_what_a_transaction_that_was_cut_off_owes_is_made_by_the_next(node: Path) -> None:
    (node / "lib").mkdir()
    (node / "lib/owed").touch()
    apt.make_requested_initramfs()
    apt.make_requested_initramfs()
    assert made(node) == ["-u"]


def test_one_that_cannot_be_made_fails_and_stays_owed(node: Path) -> None:
    (node / "broken").touch()
    with pytest.raises(apt.Failed, match="update-initramfs exited with 1"):
        apt.transact(["install", "a"], [])
    assert initramfs.is_requested()
