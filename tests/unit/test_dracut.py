"""Modules that dracut's settings keep out of each initramfs: drift and verify read them in two ways."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpuprov.drift.judge import judge
from gpuprov.probe.facts import Facts
from gpuprov.probe.node import loading as collectors
from gpuprov.roles import Expectation
from gpuprov.verify.observers.module_loading import DRACUT, foreign_drivers
from gpuprov.verify.observers.nvidia_driver import foreign_modules

GUARD = "/etc/default/grub.d/zz-gpuprov.cfg"
OURS = 'omit_drivers+=" nouveau nova_core "\n'


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with a dracut that reads gpuprov's file."""
    for folder in ("bin", "etc/dracut.conf.d", "usr/lib/dracut/dracut.conf.d"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "bin/dracut").write_text("#!/bin/sh\n")
    (tmp_path / "bin/dracut").chmod(0o755)
    (tmp_path / "etc/dracut.conf.d/gpuprov.conf").write_text(OURS)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(collectors, "DRACUT_FILE", f"{tmp_path}/etc/dracut.conf")
    folders = tuple(f"{tmp_path}{folder}" for folder in collectors.DRACUT_FOLDERS)
    monkeypatch.setattr(collectors, "DRACUT_FOLDERS", folders)
    return tmp_path


def witnesses(node: Path) -> tuple[list[str], list[str], tuple[str, ...]]:
    """Return what drift finds, what verify finds, and the places that drift names."""
    raw = {"hooks": [], "grub": [GUARD], "dkms": None, "off": False, "folders": [], "autoinstall": []}
    facts = Facts("node", "", 0.0, {"next_kernel": {**raw, "dracut": collectors._dracut()}})
    expected = Expectation("driver.next_kernel", [], "nvidia_driver", subject=None)
    found = judge("node", facts, [expected]).drift
    command = DRACUT.replace("/etc/dracut", f"{node}/etc/dracut").replace("/usr/lib", f"{node}/usr/lib")
    output = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    by = tuple(place.removeprefix(str(node)) for place in found[0].by) if found else ()
    return (found[0].actual if found else []), foreign_drivers(output), by


CASES = {
    "as gpuprov writes it": ({}, [], ()),
    "without gpuprov's file": (
        {"etc/dracut.conf.d/gpuprov.conf": ""},
        ["dracut does not omit nouveau", "dracut does not omit nova_core"],
        (),
    ),
    "a later file omits others only": (
        {"etc/dracut.conf.d/site.conf": "omit_drivers=' floppy '\n"},
        ["dracut does not omit nouveau", "dracut does not omit nova_core"],
        (),
    ),
    "an earlier file omits others only": ({"etc/dracut.conf.d/a.conf": "omit_drivers='floppy'\n"}, [], ()),
    "the vendor's file sorts later": (
        {"usr/lib/dracut/dracut.conf.d/x.conf": 'add_drivers+=" nouveau "\n'},
        ["dracut adds nouveau"],
        ("/usr/lib/dracut/dracut.conf.d/x.conf:1",),
    ),
    "a file of the site replaces the vendor's": (
        {"usr/lib/dracut/dracut.conf.d/x.conf": 'add_drivers+=" nouveau "\n', "etc/dracut.conf.d/x.conf": ""},
        [],
        (),
    ),
    "the main file": (
        {"etc/dracut.conf": '# force_drivers+="nova_core"\nforce_drivers+=" nova-core "\n'},
        ["dracut adds nova_core"],
        ("/etc/dracut.conf:2",),
    ),
    "another suffix": ({"etc/dracut.conf.d/x.conf.bak": 'add_drivers+=" nouveau "\n'}, [], ()),
}


@pytest.mark.parametrize(("files", "expected", "by"), list(CASES.values()), ids=list(CASES))
def test_both_witnesses_read_dracuts_settings(
    node: Path, files: dict[str, str], expected: list[str], by: tuple[str, ...]
) -> None:
    for name, text in files.items():
        (node / name).write_text(text)
    assert witnesses(node) == (expected, expected, by)


def test_a_node_without_dracut_has_no_such_settings(node: Path) -> None:
    (node / "bin/dracut").unlink()
    path = {"PATH": str(node / "bin")}
    done = subprocess.run(
        ["/bin/sh", "-c", DRACUT], env={"PATH": f"{path['PATH']}:/bin"}, capture_output=True
    )
    assert foreign_drivers(done.stdout.decode()) == []


LISTING = """\
Image: /boot/initrd.img-6.12.57-amd64: 41M
drwxr-xr-x   3 root     root            0 Jan  1  1970 etc/modprobe.d
-rw-r--r--   1 root     root          117 Nov 25 12:01 {}
crw-r--r--   1 root     root       5,   1 Jan  1  1970 dev/console
-rw-r--r--   1 root     root      2412345 Jan  1  1970 usr/lib/modules/6.12/kernel/nouveau/nouveau.ko.xz
lrwxrwxrwx   1 root     root           11 Jan  1  1970 init -> usr/lib/systemd/systemd
"""


def test_a_listing_of_lsinitrd_is_read_like_one_of_lsinitramfs() -> None:
    ours = "/etc/modprobe.d/gpuprov-nouveau.conf"
    assert foreign_modules(LISTING.format("etc/modprobe.d/other.conf"), [ours]) == ["nouveau"]
    assert foreign_modules(LISTING.format(ours[1:]), [ours]) == []
