"""The role's rebuild of an initramfs that is older than the blacklist, or has an older driver."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import ROOT

SCRIPT = ROOT / "roles/nvidia_driver/files/initramfs.sh"
KERNEL = "6.1.0-56-amd64"
OLD, IMAGE, NEW = 1_000_000, 2_000_000, 3_000_000
"""Times of change, before and after the image's."""


def rebuilt(folder: Path, *, blacklist: int, module: int, inside: str) -> str:
    """Return the script's output for an image with a list of files, with files of these times around it."""
    times = {"blacklist": blacklist, "nvidia-current.ko": module, f"initrd.img-{KERNEL}": IMAGE}
    for name, changed in times.items():
        (folder / name).touch()
        os.utime(folder / name, (changed, changed))
    programs = {
        "modinfo": f'case "$*" in *" nvidia-current") echo {folder}/nvidia-current.ko ;; *) exit 1 ;; esac',
        "lsinitramfs": f"printf '{inside}'",
        "make": f'touch "{folder}/initrd.img-$1"',
    }
    (folder / "bin").mkdir()
    for name, text in programs.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    words = [str(folder / "blacklist"), f"{folder}/initrd.img-", KERNEL, "--", "make"]
    path = f"{folder}/bin:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", str(SCRIPT), *words], env={"PATH": path}, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize(
    ("blacklist", "module", "inside", "expected"),
    [
        (OLD, OLD, "lib/nvidia-current.ko\\n", False),
        (NEW, OLD, "", True),
        (OLD, NEW, "lib/nvidia-current-drm.ko.zst\\n", True),
        (OLD, NEW, "lib/firmware/nvidia/gsp.bin\\nlib/nvidia-wmi-ec-backlight.ko\\n", False),
    ],
    ids=["newer than both", "older than the blacklist", "an older driver", "no driver"],
)
def test_an_image_is_rebuilt_if_it_is_outdated(
    tmp_path: Path, blacklist: int, module: int, inside: str, expected: bool
) -> None:
    said = rebuilt(tmp_path, blacklist=blacklist, module=module, inside=inside)
    assert (said == f"rebuilt {tmp_path}/initrd.img-{KERNEL}\n") == expected
