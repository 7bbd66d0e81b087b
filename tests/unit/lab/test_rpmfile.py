"""Packages of the mirror as rpm reads them: signatures, links, scripts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpuprov_lab.mirror.key import SigningKey, signing_key
from gpuprov_lab.mirror.rpmfile import build_rpm, rpm_name
from gpuprov_lab.mirror.specs import PackageSpec

SPEC = PackageSpec(
    "tool",
    "3:1-1.el9",
    "x86_64",
    files={"etc/tool.conf": b"a = 1\n", "usr/bin/tool": b"#!/bin/sh\n"},
    links={"usr/lib64/libtool.so.1": "libtool.so.1.2"},
    scripts={"post": "echo installed\n"},
)
FORM = "[%{FILENAMES} %{FILEMODES:octal} %{FILELINKTOS} %{FILEFLAGS:fflags}\n]"


def rpm(folder: Path, *words: str) -> str:
    """Run a program of rpm with a database in the folder; return its output."""
    done = subprocess.run(
        [words[0], f"--dbpath={folder}/db", *words[1:]], capture_output=True, text=True, check=False
    )
    return done.stdout


@pytest.fixture
def key() -> SigningKey:
    with signing_key() as key:
        yield key


def test_rpm_accepts_the_signature_and_no_other_bytes(tmp_path: Path, key: SigningKey) -> None:
    (tmp_path / "key.asc").write_bytes(key.public)
    subprocess.run(["rpmkeys", f"--dbpath={tmp_path}/db", "--import", tmp_path / "key.asc"], check=True)
    good, bare, changed = (str(tmp_path / name) for name in ("good.rpm", "bare.rpm", "changed.rpm"))
    content = build_rpm(SPEC, key.of_rpm)
    Path(good).write_bytes(content)
    Path(bare).write_bytes(build_rpm(SPEC))
    Path(changed).write_bytes(content.replace(b"stub of tool", b"stub of fool"))
    assert "digests signatures OK" in rpm(tmp_path, "rpmkeys", "-K", good)
    assert rpm(tmp_path, "rpmkeys", "-K", bare).endswith("digests OK\n")
    assert "NOT OK" in rpm(tmp_path, "rpmkeys", "-K", changed)


def test_files_links_and_scripts(tmp_path: Path) -> None:
    path = tmp_path / rpm_name(SPEC)
    path.write_bytes(build_rpm(SPEC))
    rows = rpm(tmp_path, "rpm", "-qp", "--nosignature", "--qf", FORM, str(path)).splitlines()
    assert rows == [
        "/etc/tool.conf 100644  cn",
        "/usr/bin/tool 100755  ",
        "/usr/lib64/libtool.so.1 120777 libtool.so.1.2 ",
        "/usr/share/doc/tool-1-1.el9/README 100644  ",
    ]
    assert "echo installed" in rpm(tmp_path, "rpm", "-qp", "--nosignature", "--scripts", str(path))
