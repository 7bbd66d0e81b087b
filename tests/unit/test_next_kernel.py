"""Kernel of the next boot: the role, verify and the probe determine it independently and must agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuprov.drift.judge import judge
from gpuprov.probe.facts import Facts
from gpuprov.probe.node import system as collectors
from gpuprov.probe.parse import system
from gpuprov.roles import Expectation
from gpuprov.verify.observers.nvidia_driver import booted_next
from tests.unit.roles.scripts import script

driver = script("nvidia_driver")
OLD, NEW = "6.1.0-9-amd64", "6.1.0-56-amd64"
SITE = "etc/default/grub.d/site.cfg"
MADE = """\
if [ "${{next_entry}}" ] ; then
   set default="${{next_entry}}"
else
   set default="{}"
fi
"""
HELD = f"gnulinux-advanced-1234>gnulinux-{OLD}-advanced-1234"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Return a node's root folder with two kernels."""
    for name in ("boot/grub", "etc/default/grub.d"):
        (tmp_path / name).mkdir(parents=True)
    for release in (OLD, NEW):
        (tmp_path / f"boot/vmlinuz-{release}").touch()
    return tmp_path


def state(node: Path, default: str | None, environment: dict[str, str], made: str | None) -> None:
    """Write what decides the next kernel: the default, GRUB's environment, and its generated file."""
    (node / "etc/default/grub").write_text("GRUB_DEFAULT=7\n" if default else "")
    (node / SITE).write_text(f'GRUB_DEFAULT="{default}"\n' if default else "")
    block = "".join(f"{name}={value}\n" for name, value in environment.items())
    (node / "boot/grub/grubenv").write_text(block)
    if made is not None:
        (node / "boot/grub/grub.cfg").write_text(MADE.format(made))


def probed(node: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the probe's result with the node's folder as root."""
    with monkeypatch.context() as patched:
        read, names, glob = collectors.read_or_none, collectors.names_in, collectors.glob.glob
        patched.setattr(collectors, "read_or_none", lambda path, *more: read(f"{node}{path}", *more))
        patched.setattr(collectors, "names_in", lambda path: names(f"{node}{path}"))
        found = [path.removeprefix(str(node)) for path in glob(f"{node}/etc/default/grub.d/*.cfg")]
        patched.setattr(collectors.glob, "glob", lambda _: found)
        return collectors.kernels({})


def greps(node: Path) -> str:
    """Return the lines that verify's grep commands find."""
    files = {"etc/default/grub": "/etc/default/grub:", SITE: f"/{SITE}:"}
    files |= {f"boot/grub/{name}": "" for name in ("grub.cfg", "grubenv")}
    lines = [
        prefix + line
        for path, prefix in files.items()
        if (node / path).is_file()
        for line in (node / path).read_text().splitlines()
        if "GRUB_DEFAULT=" in line or "set default=" in line or "_entry=" in line
    ]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("default", "environment", "made", "expected", "held_back"),
    [
        (None, {}, None, NEW, None),
        ("0", {"saved_entry": f"gnulinux-{OLD}"}, None, NEW, None),
        ("saved", {"saved_entry": f"gnulinux-{OLD}-advanced-1234"}, None, OLD, None),
        ("saved", {}, None, NEW, None),
        (f"Advanced options for Debian>Debian, with Linux {OLD}", {}, None, OLD, None),
        ("0", {"next_entry": f"gnulinux-{OLD}"}, None, OLD, None),
        ("1>2", {}, None, None, None),
        ("0", {}, "0", NEW, None),
        ("0", {}, HELD, OLD, NEW),
        (None, {}, HELD, OLD, NEW),
        (HELD, {}, HELD, OLD, None),
        ("saved", {"saved_entry": HELD}, "${saved_entry}", OLD, None),
        ("0", {"next_entry": f"gnulinux-{NEW}"}, HELD, NEW, None),
    ],
)
def test_all_three_say_the_same(
    node: Path,
    monkeypatch: pytest.MonkeyPatch,
    default: str | None,
    environment: dict[str, str],
    made: str | None,
    expected: str | None,
    held_back: str | None,
) -> None:
    """Check that role, verify and drift find the same kernel for the next boot."""
    state(node, default, environment, made)
    assert driver.next_kernels(str(node)) == [each for each in (expected, held_back) if each]
    boot = booted_next([OLD, NEW], greps(node))
    assert (boot.release, boot.held_back) == (expected, held_back)
    kernels = system.parse_kernels(probed(node, monkeypatch), OLD)
    assert (kernels.next_boot, kernels.held_back) == (expected, held_back)
    if default not in (None, "0"):
        for why in (boot.why, kernels.next_boot_reason):
            assert f"/{SITE} has GRUB_DEFAULT={default}" in why


@pytest.mark.parametrize(
    ("default", "made", "built", "outdated"),
    [
        ("0", "0", {OLD, NEW}, False),
        ("0", "0", {OLD}, True),
        ("0", HELD, {OLD}, False),
        ("0", HELD, {OLD, NEW}, True),
        ("0", HELD.replace(OLD, "6.1.0-8-amd64"), {OLD, NEW}, True),
        ("0", "0", set(), False),
        ("saved", "${saved_entry}", {OLD}, False),
        ("1>2", "1>2", {OLD}, False),
        ("0", None, {OLD}, False),
    ],
)
def test_when_grub_has_to_choose_once_more(
    node: Path, default: str, made: str | None, built: set[str], outdated: bool
) -> None:
    state(node, default, {}, made)
    assert driver.outdated(lambda kernel: kernel in built, str(node)) == outdated


@pytest.mark.parametrize(
    ("program", "device", "made"),
    [
        ("/usr/sbin/update-grub", "/dev/sda1\n", True),
        ("/usr/sbin/update-grub", "", False),
        (None, "/dev/sda1\n", False),
    ],
)
def test_where_grub_sees_no_disk_nothing_is_made(
    monkeypatch: pytest.MonkeyPatch, program: str | None, device: str, made: bool
) -> None:
    monkeypatch.setattr(driver.shutil, "which", lambda name: program)
    monkeypatch.setattr(driver, "output", lambda *_: device)
    assert driver.boots_by_grub() is made


def test_a_kernel_that_is_held_back_may_wait_for_its_build(node: Path) -> None:
    state(node, "0", {}, HELD)
    assert driver.due([OLD, NEW], {}, str(node)) == [OLD]
    assert driver.due([OLD, NEW], {NEW: {}}, str(node)) == [OLD, NEW]
    state(node, "0", {}, "0")
    assert driver.due([OLD, NEW], {}, str(node)) == [OLD, NEW]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (HELD, f"none for kernel {NEW} (held back: {OLD} boots next)"),
        ("0", f"none for kernel {NEW} (boots next: the newest image in /boot)"),
    ],
)
def test_drift_says_whether_a_kernel_without_its_module_boots(
    node: Path, monkeypatch: pytest.MonkeyPatch, made: str, said: str
) -> None:
    state(node, None, {}, made)
    there = f"filename: /lib/modules/{OLD}/nvidia.ko\nversion: 535.309.01\n"
    raw = {
        "kernels": probed(node, monkeypatch),
        "system": {"kernel": OLD},
        "disk_modules": {OLD: there},
        "loading": {"kernels": {}, "devices": [], "absent": []},
    }
    facts = Facts("node", "", 0.0, raw)
    expected = Expectation("driver.module_on_disk", "535.309.01", "nvidia_driver", subject="running")
    assert [each.actual for each in judge("node", facts, [expected]).drift] == [said]
