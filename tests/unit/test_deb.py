"""`gpuprov.deb`: its files, what it depends on, and the same bytes for the same content."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from gpuprov import __version__
from gpuprov.errors import GpuprovError, InvalidInput
from maintenance.release import deb
from maintenance.release.__main__ import main

WHEN = 1795000000
WHO = "Anna Example <anna@example.org>"


@pytest.fixture
def pyz(tmp_path: Path) -> Path:
    """Return the path of a small gpuprov.pyz with one wheel."""
    path = tmp_path / "gpuprov.pyz"
    with zipfile.ZipFile(path, "w") as whole:
        whole.writestr("__main__.py", "print('started')")
        whole.writestr("wheels/click-8.5.1-py3-none-any.whl", b"")
    return path


def built(pyz: Path, folder: Path) -> Path:
    """Build the package in a new folder, and return its path."""
    folder.mkdir()
    deb.build_deb(pyz, folder / deb.NAME, __version__, WHO, folder, WHEN)
    return folder / deb.NAME


def shown(*words: str | Path) -> str:
    """Return the output of dpkg-deb."""
    return subprocess.run(["dpkg-deb", *words], check=True, capture_output=True, text=True).stdout


def test_the_same_content_is_the_same_package(pyz: Path, tmp_path: Path) -> None:
    one, other = (built(pyz, tmp_path / name) for name in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()
    pyz.write_bytes(pyz.read_bytes()[:-20])
    with pytest.raises(zipfile.BadZipFile):
        built(pyz, tmp_path / "third")


def test_what_is_in_it(pyz: Path, tmp_path: Path) -> None:
    """Check fields and files of the Debian package."""
    package = built(pyz, tmp_path / "one")
    assert shown("--field", package, "Package", "Version", "Architecture", "Depends").splitlines() == [
        "Package: gpuprov",
        f"Version: {__version__}",
        "Architecture: all",
        "Depends: python3 (>= 3.11), gpgv, openssh-client",
    ]
    rows = [line.split() for line in shown("--contents", package).splitlines()]
    assert {row[1] for row in rows} == {"root/root"}
    modes = {row[5].removeprefix("./"): row[0] for row in rows if not row[5].endswith("/")}
    assert modes == {
        "usr/bin/gpuprov": "-rwxr-xr-x",
        "usr/share/doc/gpuprov/changelog.gz": "-rw-r--r--",
        "usr/share/doc/gpuprov/copyright": "-rw-r--r--",
        "usr/share/gpuprov/gpuprov.pyz": "-rw-r--r--",
        "usr/share/man/man1/gpuprov.1.gz": "-rw-r--r--",
    }


def test_its_command_starts_the_file(pyz: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    subprocess.run(["dpkg-deb", "--extract", built(pyz, tmp_path / "one"), root], check=True)
    command = (root / "usr/bin/gpuprov").read_text().replace("/usr/", f"{root}/usr/")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "started\n"
    assert "click-8.5.1-py3-none-any.whl" in (root / "usr/share/doc/gpuprov/copyright").read_text()


@pytest.mark.parametrize("who", ["anna", "Anna Example", "anna@example.org", "A <b>", "A <b@c>\nX: y"])
def test_a_maintainer_has_a_name_and_an_address(who: str, pyz: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="maintainer"):
        deb.build_deb(pyz, tmp_path / "x.deb", __version__, who, tmp_path, WHEN)


def test_without_dpkg_it_is_said(pyz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the error without dpkg-deb."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(GpuprovError, match="dpkg-deb is not installed"):
        deb.build_deb(pyz, tmp_path / "x.deb", __version__, WHO, tmp_path, WHEN)


def test_a_maintainer_is_required(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deb", str(tmp_path)]) == 2
    assert "--maintainer" in capsys.readouterr().err
