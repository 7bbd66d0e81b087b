"""The probe's questions on modprobe's dry run, DKMS's settings and GRUB's command lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprov.probe.node import base, loading, system
from gpuprov.probe.parse.loading import parse_loading

KERNEL = "6.1.0-56-amd64"
GPU = "pci:v000010DEd000020B2sv000010DEsd00001463bc03sc02i00"
MODPROBE = """#!/bin/sh
case "$*" in *nouveau*) exit 1 ;; *uvm) echo "insmod {0}/nvidia-uvm.ko" ;; esac
echo "insmod {0}/$5.ko x=1"; echo "$@" >&2
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder at the start of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setitem(base.ENVIRONMENT, "PATH", f"{folder}:{base.ENVIRONMENT['PATH']}")
    return folder


def test_every_name_is_requested_once_for_each_kernel(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (programs / "modprobe").write_text(MODPROBE.format(tmp_path))
    (programs / "modprobe").chmod(0o755)
    files = (
        "updates/dkms/nvidia-current.ko",
        "updates/dkms/nvidia-current-uvm.ko.xz",
        "kernel/nvidia-wmi.ko",
    )
    (tmp_path / "modules.dep").write_text("".join(f"{file}:\n" for file in files))
    (tmp_path / "nvidia.ko").touch()
    monkeypatch.setattr(loading, "kernels_with_modules", lambda: [KERNEL, "6.2 ; reboot"])
    monkeypatch.setattr(loading, "dependencies", lambda kernel: str(tmp_path / "modules.dep"))
    monkeypatch.setattr(loading, "_devices", lambda: [GPU])
    found = loading.loading({})
    assert list(found["kernels"]) == [KERNEL]
    answers = found["kernels"][KERNEL]
    assert list(answers) == ["nvidia", "nvidia-uvm", GPU, "nvidia-current", "nvidia-current-uvm"]
    assert answers["nvidia"].splitlines() == [
        f"insmod {tmp_path}/nvidia.ko x=1",
        f"--show-depends -b -S {KERNEL} nvidia",
    ]
    assert answers["nvidia-current"].endswith(f"-i -S {KERNEL} nvidia-current")
    assert f"{tmp_path}/nvidia-current.ko" in found["absent"]
    assert f"{tmp_path}/nvidia.ko" not in found["absent"]


def test_without_modprobe_its_absence_is_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    (tmp_path / "modules.dep").write_text("nvidia.ko:\n")
    monkeypatch.setitem(base.ENVIRONMENT, "PATH", str(tmp_path))
    monkeypatch.setattr(loading, "kernels_with_modules", lambda: [KERNEL])
    monkeypatch.setattr(loading, "dependencies", lambda kernel: str(tmp_path / "modules.dep"))
    assert "not found" in loading.loading({})["kernels"][KERNEL]["nvidia"]


def test_the_last_word_on_autoinstall_is_the_site_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("a", 'X=1\nAUTOINSTALL="yes" # by default\n'), ("b", "#AUTOINSTALL=yes\n")):
        (tmp_path / f"nvidia-{name}/535/source").mkdir(parents=True)
        (tmp_path / f"nvidia-{name}/535/source/dkms.conf").write_text(text)
    monkeypatch.setattr(loading, "DKMS_TREE", f"{tmp_path}/")
    assert loading._autoinstall() == [
        ["nvidia-a", "535", f"{tmp_path}/nvidia-a/535/source/dkms.conf:2", "yes"],
        ["nvidia-b", "535", f"{tmp_path}/nvidia-b/535/source/dkms.conf", ""],
    ]


def test_a_hook_is_a_program_whose_name_run_parts_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, mode in (("dkms", 0o755), ("dkms.dpkg-old", 0o755), ("idle", 0o755), ("off", 0o644)):
        (tmp_path / name).write_text("#!/bin/sh\n" + f"exec {loading.AUTOINSTALLER}\n" * (name == "idle"))
        (tmp_path / name).chmod(mode)
    monkeypatch.setattr(loading, "KERNEL_HOOKS", (f"{tmp_path}/",))
    monkeypatch.setattr(loading, "INSTALLERS", f"{tmp_path}/*.install")
    assert [path for path in loading._hooks() if loading._works(path)] == [f"{tmp_path}/dkms"]


def test_a_kernel_s_first_entry_in_grub_cfg_counts() -> None:
    config = f"""\
    \tlinux\t/boot/vmlinuz-{KERNEL} root=/dev/sda1 ro quiet module_blacklist=nvidia nvidia.NVreg_X=1
    \tinitrd /boot/initrd.img-{KERNEL}
    \tlinux\t/boot/vmlinuz-{KERNEL} root=/dev/sda1 ro single
    \tlinuxefi /vmlinuz-6.2 root=/dev/sda1
    """
    assert system._arguments(config) == {KERNEL: "module_blacklist=nvidia nvidia.NVreg_X=1", "6.2": ""}


@pytest.mark.parametrize(
    ("setting", "inside", "made", "images"),
    [
        ("nvidia-current", "lib/modules/nvidia-current.ko", 2, True),
        ("nvidia-current", "lib/modules/nvidia-current.ko", 0, False),
        ("nvidia-current", "lib/modules/nvidia-wmi-ec.ko", 2, False),
        ("# nvidia-current", "lib/modules/nvidia-current.ko", 2, False),
        ('add_drivers+=" nvidia nvidia-drm "', "lib/modules/nvidia-current.ko", 2, True),
    ],
)
def test_an_image_is_read_only_if_a_setting_adds_the_driver_and_it_is_older(
    tmp_path: Path,
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    inside: str,
    made: int,
    images: bool,
) -> None:
    (programs / "lsinitramfs").write_text(f"#!/bin/sh\necho {inside}\n")
    (programs / "lsinitramfs").chmod(0o755)
    (tmp_path / "modules").write_text(f"{setting}\n")
    monkeypatch.setattr(loading, "MODULE_LISTS", (f"{tmp_path}/modules", f"{tmp_path}/*.d"))
    monkeypatch.setattr(loading, "kernels_with_modules", lambda: [KERNEL])
    monkeypatch.setattr(loading, "_images", lambda kernel: ["/boot/initrd.img"] if made else [])
    assert any(loading.initramfs({}).values()) == images


def test_more_than_the_probe_requests_is_not_parsed() -> None:
    answers = {str(number): f"install /sbin/modprobe {number + 1}" for number in range(2000)}
    kernels = {f"6.1.{number}-amd64": answers for number in range(20)}
    found = parse_loading({"kernels": kernels, "devices": [GPU] * 9, "absent": []})
    assert found.devices == (GPU,) * 4
    assert len(found.kernels) == 8
    assert found.kernels["6.1.0-amd64"].steps("0") == []
