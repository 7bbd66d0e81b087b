"""The role's new images of kernels whose initramfs is older than its settings, or has an older driver."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import gpuprov_initramfs as initramfs
import pytest

from gpuprov.roles.nvidia_driver import FOREIGN_MODULES
from tests.unit.roles.scripts import script
from tests.unit.roles.test_cpio import archive

KERNEL = "6.1.0-56-amd64"
OLD, IMAGE, NEW = 1_000_000, 2_000_000, 3_000_000
"""Times of change, before and after the image's."""
MODULES = f"usr/lib/modules/{KERNEL}/modules.dep\n"
GENERATORS = {
    "initramfs-tools": {
        "update-initramfs": '[ "$*" = "-u -k 6.1.0-56-amd64" ] && touch "$BOOT/initrd.img-6.1.0-56-amd64"',
    },
    "dracut": {
        "dracut": '[ "$1 $2 $4" = "--quiet --force 6.1.0-56-amd64" ] && touch "$3"',
    },
}


@pytest.fixture(params=list(GENERATORS))
def node(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an image and the programs of one generator, whose `broken` makes them fail."""
    programs = {
        **GENERATORS[request.param],
        "modinfo": f'case "$*" in *" nvidia-current") echo {tmp_path}/nvidia-current.ko ;; *) exit 1 ;; esac',
    }
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        broken = f"if [ -e {tmp_path}/broken ]; then echo no room >&2; exit 1; fi"
        head = broken if name in ("update-initramfs", "dracut") else ":"
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\nBOOT={tmp_path}\n{head}\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr("gpuprov_node.ENVIRONMENT", {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    monkeypatch.setattr(initramfs, "BOOT", str(tmp_path))
    monkeypatch.setattr(initramfs, "PROGRAM", f"{tmp_path}/bin/update-initramfs")
    monkeypatch.setattr(initramfs, "DRACUT", f"{tmp_path}/bin/dracut")
    return tmp_path


def answer(
    node: Path, capsys: pytest.CaptureFixture[str], *, blacklist: int, module: int, inside: str
) -> dict[str, Any]:
    """Return the script's document for an image with a list of files, with files of these times."""
    times = {"blacklist": blacklist, "nvidia-current.ko": module, f"initrd.img-{KERNEL}": IMAGE}
    (node / f"initrd.img-{KERNEL}").write_bytes(archive(inside.split()))
    for name, changed in times.items():
        (node / name).touch()
        os.utime(node / name, (changed, changed))
    settings = [f"{node}/blacklist", f"{node}/missing"]
    asked = {"settings": settings, "kernels": [KERNEL, "6.1.0-55-amd64"], "modules": ["nvidia-current"]}
    sys.argv[1:] = [json.dumps(asked)]
    script("nvidia_driver", "initramfs").main()
    document: dict[str, Any] = json.loads(capsys.readouterr().out.strip())
    return document


@pytest.mark.parametrize(
    ("blacklist", "module", "inside", "expected"),
    [
        (OLD, OLD, f"{MODULES}lib/nouveau.ko\nlib/nvidia-current.ko\n", False),
        (NEW, OLD, f"{MODULES}lib/nouveau.ko.xz\n", True),
        (NEW, OLD, f"{MODULES}lib/nova_core.ko\n", True),
        (NEW, OLD, f"{MODULES}lib/nvidia-current.ko\nlib/firmware/nouveau/a.bin\n", False),
        (NEW, OLD, "early/microcode\n", True),
        (NEW, OLD, f"{MODULES}squashfs-root.img\n", True),
        (OLD, NEW, f"{MODULES}lib/nvidia-current-drm.ko.zst\n", True),
        (OLD, NEW, f"{MODULES}lib/nouveau.ko\n", False),
        (OLD, NEW, f"{MODULES}lib/firmware/nvidia/gsp.bin\nlib/nvidia-wmi-ec-backlight.ko\n", False),
    ],
    ids=[
        "newer than both",
        "nouveau, and older than the blacklist",
        "nova_core, and older than the blacklist",
        "older than the blacklist, without such a module",
        "older than the blacklist, with an incomplete list",
        "older than the blacklist, with a file system inside",
        "an older driver",
        "nouveau, and older than the driver",
        "no driver",
    ],
)
def test_an_image_is_made_again_if_it_is_outdated(
    node: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    blacklist: int,
    module: int,
    inside: str,
    expected: bool,
) -> None:
    monkeypatch.setattr(sys, "argv", ["initramfs.py"])
    said = answer(node, capsys, blacklist=blacklist, module=module, inside=inside)
    rebuilt = [f"{node}/initrd.img-{KERNEL}"] if expected else []
    assert said == {"changed": expected, "rebuilt": rebuilt, "failure": None}


def test_the_modules_are_those_of_the_witnesses() -> None:
    assert all(script("nvidia_driver", "initramfs").FOREIGN.search(f"{name}.ko") for name in FOREIGN_MODULES)


def test_an_image_that_cannot_be_made_is_a_failure(
    node: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["initramfs.py"])
    (node / "broken").touch()
    said = answer(node, capsys, blacklist=NEW, module=OLD, inside="early/microcode")
    assert said["changed"] is False
    assert said["failure"]["says"].endswith("exited with 1: no room")


def test_an_image_whose_files_cannot_be_listed_is_no_newer_one(
    node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = answer(node, capsys, blacklist=OLD, module=NEW, inside="")
    assert document["changed"] is False
    assert document["failure"]["says"] == f"{node}/initrd.img-{KERNEL}: has no archive of files"
