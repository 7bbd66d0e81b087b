"""Parser of PCI devices from sysfs."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprov.untrusted import device_name
from gpuprov.untrusted.parsing import whole_number

NVIDIA = "10de"
MELLANOX = "15b3"


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One device. Ids in lower case without 0x; `class_code` is class, subclass and interface: `030200`."""

    address: str
    vendor: str
    device: str
    class_code: str
    subsystem: str
    numa_node: int | None
    driver: str | None

    @property
    def id(self) -> str:
        """Vendor and device: `10de:2335`."""
        return f"{self.vendor}:{self.device}"

    @property
    def is_nvidia_gpu(self) -> bool:
        """Whether it is a display controller (base class 03) of NVIDIA: VGA 0300 or 3D 0302."""
        return self.vendor == NVIDIA and self.class_code.startswith("03")

    @property
    def is_nvswitch(self) -> bool:
        """Whether it is a bridge of NVIDIA (class 0680), such as NVSwitches
        of HGX boards before Blackwell.
        """
        return self.vendor == NVIDIA and self.class_code.startswith("0680")


def parse_pci(rows: list[list[str]]) -> tuple[PciDevice, ...]:
    """Parse rows of address, vendor, device, class, subsystem's vendor and device, NUMA node, driver.

    Rows of another length are left out.

    Raises:
        NodeFailed: an address or a driver is not a device name.
    """
    return tuple(_device(*row) for row in rows if len(row) == 8)


def _device(
    address: str,
    vendor: str,
    device: str,
    code: str,
    sub_vendor: str,
    sub_device: str,
    numa: str,
    driver: str,
) -> PciDevice:
    """Return the device in one row; ids lose their `0x`, an empty driver and a NUMA node of -1 are None.

    Raises:
        NodeFailed: the address or the driver has characters that no device name has.
    """
    return PciDevice(
        address=device_name(address.lower()),
        vendor=_bare(vendor),
        device=_bare(device),
        class_code=_bare(code),
        subsystem=f"{_bare(sub_vendor)}:{_bare(sub_device)}",
        numa_node=whole_number(numa),
        driver=device_name(driver) if driver else None,
    )


def _bare(number: str) -> str:
    """Return a hexadecimal number in lower case without `0x`."""
    return number.lower().removeprefix("0x")
