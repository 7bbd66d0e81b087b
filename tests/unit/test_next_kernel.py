"""Which kernel boots next: the role, verify and the probe read it each by itself, and must agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprov.probe.parse import system
from gpuprov.verify.modules.nvidia_driver import booted_next
from tests.unit.roles.scripts import script

driver = script("nvidia_driver")
OLD, NEW = "6.1.0-9-amd64", "6.1.0-56-amd64"


@pytest.mark.parametrize(
    ("default", "environment", "expected"),
    [
        (None, {}, NEW),
        ("0", {"saved_entry": f"gnulinux-{OLD}"}, NEW),
        ("saved", {"saved_entry": f"gnulinux-{OLD}-advanced-1234"}, OLD),
        ("saved", {}, NEW),
        (f"Advanced options for Debian>Debian, with Linux {OLD}", {}, OLD),
        ("0", {"next_entry": f"gnulinux-{OLD}"}, OLD),
        ("1>2", {}, None),
    ],
)
def test_all_three_say_the_same(
    tmp_path: Path, default: str | None, environment: dict[str, str], expected: str | None
) -> None:
    line = f'GRUB_DEFAULT="{default}"\n' if default else ""
    block = "".join(f"{name}={value}\n" for name, value in environment.items())
    for name in ("boot/grub", "etc/default/grub.d"):
        (tmp_path / name).mkdir(parents=True)
    for release in (OLD, NEW):
        (tmp_path / f"boot/vmlinuz-{release}").touch()
    (tmp_path / "etc/default/grub").write_text("GRUB_DEFAULT=7\n" if default else "")
    (tmp_path / "etc/default/grub.d/site.cfg").write_text(line)
    (tmp_path / "boot/grub/grubenv").write_text(block)
    assert driver.next_kernel(str(tmp_path)) == expected
    assert booted_next([OLD, NEW], line + block) == ([expected] if expected else [])
    assert system.next_boot((OLD, NEW), default, environment)[0] == expected
