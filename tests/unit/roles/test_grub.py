"""Configuration that keeps GRUB from kernels without the driver's module, run as in grub-mkconfig."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.programs import write_program
from tests.unit.roles.test_templates import render

OLDER, OLD, NEW = "6.1.0-9-amd64", "6.1.0-55-amd64", "6.1.0-56-amd64"
KEPT = f"gnulinux-advanced-1234>gnulinux-{OLD}-advanced-1234"
MKCONFIG = "grub_get_device_id() { echo 1234; }; GRUB_DEVICE=/dev/sda1"
Choose = Callable[..., tuple[str, str]]


@pytest.fixture
def choose(tmp_path: Path) -> Choose:
    """Function choose(*built, before="GRUB_DEFAULT=0", version=…) → final GRUB_DEFAULT, and the messages."""

    def chosen(
        *built: str, before: str = "GRUB_DEFAULT=0", version: str = "535.309.01", caller: str = MKCONFIG
    ) -> tuple[str, str]:
        """Run the generated configuration; return GRUB_DEFAULT and the messages."""
        names = {"proprietary": ["nvidia-current", "nvidia"]}
        text = render(
            "nvidia_driver/templates/grub.cfg.j2",
            nvidia_driver_version=version,
            nvidia_driver_module="proprietary",
            __nvidia_driver_module_names=names,
        )
        (tmp_path / "zz-gpuprov.cfg").write_text(text)
        write_program(tmp_path / "ls", f"printf '%s\\n' vmlinuz-{NEW} vmlinuz-{OLD} vmlinuz-{OLDER} config-x")
        has = "|".join(f'"-k {kernel} -F version nvidia"' for kernel in built) or "none"
        write_program(tmp_path / "modinfo", f'case "$*" in {has}) echo 535.309.01 ;; *) exit 1 ;; esac')
        done = subprocess.run(
            ["sh", "-eu", "-c", f"{caller}; {before}; . {tmp_path}/zz-gpuprov.cfg; echo ${{GRUB_DEFAULT-}}"],
            capture_output=True, text=True, check=True, timeout=20,
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        )  # fmt: skip
        return done.stdout.strip(), done.stderr

    return chosen


def test_the_newest_kernel_with_the_module_boots(choose: Choose) -> None:
    assert choose(OLD, OLDER)[0] == KEPT
    assert choose(OLDER)[0] == KEPT.replace(OLD, OLDER)
    assert choose(OLD, before="GRUB_DEFAULT=") == choose(OLD, before=":") == choose(OLD)


def test_it_says_which_kernel_waits(choose: Choose) -> None:
    _, said = choose(OLD)
    assert said == f"Without NVIDIA's module 535.309.01: {NEW}; {OLD} boots by default\n"


def test_where_there_is_nothing_to_choose_nothing_changes(choose: Choose) -> None:
    assert choose(NEW, OLD) == ("0", "")
    assert choose() == ("0", "")
    assert choose(OLD, version="550.1") == ("0", "")


@pytest.mark.parametrize("stated", ["saved", "1>2", "gnulinux-simple-1234"])
def test_a_persons_word_stands(choose: Choose, stated: str) -> None:
    assert choose(OLD, before=f"GRUB_DEFAULT='{stated}'") == (stated, "")


def test_without_a_submenu(choose: Choose) -> None:
    """Check the entry that is chosen if GRUB has no submenu."""
    entry, _ = choose(OLD, before="GRUB_DISABLE_SUBMENU=y")
    assert entry == f"gnulinux-{OLD}-advanced-1234"


def test_others_that_read_the_file_find_nothing_changed(choose: Choose) -> None:
    """Change nothing for other readers of the file: grub-install and the packages' own scripts."""
    assert choose(OLD, caller=":") == ("0", "")


def test_a_device_that_grub_does_not_know_changes_nothing(choose: Choose) -> None:
    assert choose(OLD, caller="grub_get_device_id() { return 1; }; GRUB_DEVICE=none")[0] == "0"
