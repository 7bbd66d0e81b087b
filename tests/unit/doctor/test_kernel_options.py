"""Lines of the doctor that add an option of the kernel, where grub.cfg is made and with boot entries."""

from __future__ import annotations

from gpuprov.doctor.lines import with_kernel_option


def test_boot_entries_are_changed_by_grubby_and_grub_cfg_is_made_again() -> None:
    assert list(map(str, with_kernel_option("iommu=pt", entries=True))) == [
        "sudo grubby --update-kernel=ALL --args=iommu=pt",
        "sudo reboot",
    ]
    assert list(map(str, with_kernel_option("iommu=pt", entries=False))) == [
        "add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub",
        "sudo update-grub, sudo reboot",
    ]
