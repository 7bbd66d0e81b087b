"""Program that keeps kernels without the driver's module from booting, where kernels are boot entries."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.programs import write_program
from tests.unit.roles.scripts import script
from tests.unit.roles.test_templates import render

look = script("nvidia_driver")
OLDER, OLD, NEW = (f"5.14.0-{number}.el9_6.x86_64" for number in ("503.40.1", "570.12.1", "570.9999.1"))
RESCUE = "0-rescue-0123456789abcdef0123456789abcdef"


@dataclass
class Machine:
    """A folder with kernels, a boot loader's default, and the program."""

    root: Path

    def run(self, *words: str, built: tuple[str, ...]) -> str:
        """Run the program with modules for the kernels in `built`; return its messages."""
        has = "|".join(f'"-k {kernel} -F version nvidia"' for kernel in built) or "none"
        write_program(self.root / "modinfo", f'case "$*" in {has}) echo 580.126.16 ;; *) exit 1 ;; esac')
        done = subprocess.run(
            ["sh", self.root / "program", *words], capture_output=True, text=True, check=True, timeout=120,
            env={**os.environ, "PATH": f"{self.root}:{os.environ['PATH']}"},
        )  # fmt: skip
        return done.stderr

    @property
    def default(self) -> str:
        """Return or set the kernel of the next boot."""
        return (self.root / "default").read_text().strip().rpartition("/vmlinuz-")[2]

    @default.setter
    def default(self, kernel: str) -> None:
        (self.root / "default").write_text(f"/boot/vmlinuz-{kernel}\n")

    @property
    def record(self) -> str | None:
        """Return the record of a kernel that is held back; None without one."""
        path = self.root / "var/lib/gpuprov/held-back-kernel"
        return path.read_text() if path.exists() else None


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine with three kernels and a rescue kernel, and the program rendered for a driver."""
    (tmp_path / "boot").mkdir()
    (tmp_path / "var/lib/gpuprov").mkdir(parents=True)
    for kernel in (OLDER, OLD, NEW, RESCUE):
        (tmp_path / f"boot/vmlinuz-{kernel}").touch()
    text = render(
        "nvidia_driver/templates/bls.install.j2",
        nvidia_driver_version="580.126.16",
        nvidia_driver_module="open",
        __nvidia_driver_module_names={"open": ["nvidia"]},
        __nvidia_driver_held_back=f"{tmp_path}/var/lib/gpuprov/held-back-kernel",
    )
    (tmp_path / "program").write_text(
        text.replace('"/boot/vmlinuz-$waiting"', f'"{tmp_path}/boot/vmlinuz-$waiting"').replace(
            "ls -rv /boot", f"ls -rv {tmp_path}/boot"
        )
    )
    write_program(
        tmp_path / "grubby",
        f"case $1 in --default-kernel) cat {tmp_path}/default ;;"
        f' --set-default) echo "$2" >{tmp_path}/default ;; *) exit 2 ;; esac',
    )
    machine = Machine(tmp_path)
    machine.default = NEW
    return machine


def test_the_newest_kernel_with_the_module_boots_until_the_default_has_it(machine: Machine) -> None:
    said = machine.run("add", NEW, built=(OLD, OLDER))
    assert said == f"Without NVIDIA's module 580.126.16: {NEW}; {OLD} boots by default\n"
    assert (machine.default, machine.record) == (OLD, f"{NEW} {OLD}\n")
    assert machine.run("choose", built=(OLD,)) == ""
    assert (machine.default, machine.record) == (OLD, f"{NEW} {OLD}\n")
    machine.run("choose", built=(OLD, NEW))
    assert (machine.default, machine.record) == (NEW, None)


def test_a_kernel_that_boots_in_its_place_can_lose_its_module_too(machine: Machine) -> None:
    machine.run("add", NEW, built=(OLD, OLDER))
    machine.run("choose", built=(OLDER,))
    assert (machine.default, machine.record) == (OLDER, f"{NEW} {OLDER}\n")


def test_a_default_that_was_set_meanwhile_is_kept(machine: Machine) -> None:
    machine.run("add", NEW, built=(OLD, OLDER))
    machine.default = OLDER
    machine.run("choose", built=(OLD, OLDER, NEW))
    assert (machine.default, machine.record) == (OLDER, None)


def test_a_kernel_that_was_removed_is_not_waited_for(machine: Machine) -> None:
    machine.run("add", NEW, built=(OLD,))
    (machine.root / f"boot/vmlinuz-{NEW}").unlink()
    machine.run("choose", built=(OLD,))
    assert (machine.default, machine.record) == (OLD, None)


@pytest.mark.parametrize(
    ("words", "built"), [(("add", NEW), (NEW, OLD)), (("add", NEW), ()), (("remove", NEW), (OLD,))]
)
def test_where_there_is_nothing_to_choose_nothing_changes(
    machine: Machine, words: tuple[str, ...], built: tuple[str, ...]
) -> None:
    assert machine.run(*words, built=built) == ""
    assert (machine.default, machine.record) == (NEW, None)


def test_the_role_sees_the_same_state(machine: Machine) -> None:
    """Compare the role's script with the program: both must agree on what is to be done."""
    block = machine.root / "boot/grub2/grubenv"
    block.parent.mkdir()
    block.write_text(f"saved_entry=0123456789abcdef0123456789abcdef-{NEW}\n")
    root = str(machine.root)
    assert look.images(root) == [NEW, OLD, OLDER]
    assert look.next_kernels(root) == [NEW]
    assert [look.outdated_entry(built.__contains__, root) for built in ((), (NEW,), (OLD,))] == [
        False,
        False,
        True,
    ]
    machine.run("add", NEW, built=(OLD,))
    block.write_text(f"saved_entry=0123456789abcdef0123456789abcdef-{OLD}\n")
    assert look.next_kernels(root) == [OLD, NEW]
    assert look.due([OLD, NEW], {}, root) == [OLD]
    assert [look.outdated_entry(built.__contains__, root) for built in ((OLD,), (OLD, NEW))] == [False, True]
