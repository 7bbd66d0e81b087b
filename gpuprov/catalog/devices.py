"""GPUs of the lists of devices: rows of distinguishing fields, and records made on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from gpuprov.catalog.records import GpuModel
from gpuprov.catalog.version import version
from gpuprov.untrusted.stated import stated_file

Row = Mapping[str, Any]
Table = tuple[Mapping[str, Row], tuple[Row, ...], tuple[str, ...]]
"""Id → row; runs: ranges of neighbouring device ids with the compute capability of the known ones; releases
whose lists of devices were read.
"""
ROW = "rows of the lists of devices: id, name, and the driver that lists each device id"
Make = Callable[[dict[str, Any]], GpuModel]
"""Function that makes a GPU's record from its own fields and the defaults of its architecture and segment."""


class Devices:
    """The rows of `devices.json`, by id and by PCI device id."""

    def __init__(self, read: Callable[[], Table], make: Make) -> None:
        """Keep `read` and `make`; nothing is read yet.

        Args:
            read: returns the table. Called once, on first use: most requests name a board.
            make: makes a record from a row's fields.
        """
        self._read, self._make = read, make
        self._made: dict[str, GpuModel] = {}
        self._guessed: dict[str, GpuModel] = {}

    @cached_property
    def _table(self) -> Table:
        """The table, with ids in lower case; read at first use."""
        rows, runs, releases = self._read()
        return {name.lower(): row for name, row in rows.items()}, runs, releases

    @property
    def _rows(self) -> Mapping[str, Row]:
        """Rows by id in lower case."""
        return self._table[0]

    @property
    def releases(self) -> tuple[str, ...]:
        """Releases of drivers whose lists of devices were read."""
        return self._table[2]

    @cached_property
    def _by_device(self) -> Mapping[str, list[str]]:
        """Device id → ids of the rows with that device, in lower case."""
        found: dict[str, list[str]] = {}
        for key, row in self._rows.items():
            for device in row["devices"]:
                found.setdefault(device, []).append(key)
        return found

    def get(self, id: str) -> GpuModel | None:  # noqa: A002 - as the records spell it
        """Return the GPU with that id, in upper or lower case, or None; read its row at the first call.

        Raises:
            InvalidInput: the row is not valid.
        """
        key = id.lower()
        if key not in self._made:
            if key not in self._rows:
                return None
            with stated_file(f"devices.json: devices[{id}]", expected=ROW):
                self._made[key] = self._make(_fields(self._rows[key], self.releases))
        return self._made[key]

    def all(self) -> Iterator[GpuModel]:
        """Yield all GPUs, in the order of the table; raises as `get`."""
        return (gpu for key in self._rows if (gpu := self.get(key)))

    def names(self) -> Iterator[tuple[str, Row]]:
        """Yield id and row of each GPU, for an index of their names."""
        return iter(self._rows.items())

    def of_board(self, device: str, subsystem: str) -> tuple[GpuModel, ...]:
        """Return the GPUs whose row names this board, possibly empty; raises as `get`.

        Args:
            device: four hexadecimal digits in capitals.
            subsystem: `10DE:16C0`, in capitals.
        """
        return self._of(device, lambda row: subsystem in row.get("subsystems", {}).get(device, ()))

    def of(self, device: str) -> tuple[GpuModel, ...]:
        """Return the GPU for all boards of a device without their own rows; else all GPUs of the device, if
        any; raises as `get`.

        Args:
            device: four hexadecimal digits in capitals.
        """
        rest = self._of(device, lambda row: device not in row.get("subsystems", {}))
        return rest or self._of(device, lambda row: True)

    def _of(self, device: str, fits: Callable[[Row], bool]) -> tuple[GpuModel, ...]:
        """Return the GPUs of a device whose row fits, possibly empty; raises as `get`."""
        keys = [key for key in self._by_device.get(device, ()) if fits(self._rows[key])]
        return tuple(gpu for key in keys if (gpu := self.get(key)))

    def guess(self, device: str) -> GpuModel | None:
        """Return a GPU for a device id without a row: its architecture is that of neighbouring ids; None
        outside all runs.

        Args:
            device: four hexadecimal digits in capitals.
        """
        name = f"10DE:{device}"
        run = next((run for run in self._table[1] if run["first"] <= device <= run["last"]), None)
        if run is None or name in self._guessed:
            return self._guessed.get(name)
        self._guessed[name] = self._make(
            {
                "id": name,
                "nvidia_smi_name": name,
                "pci_device_ids": [device],
                "compute_capability": run["compute_capability"],
                "segment": "unknown",
                "listed_only": True,
                "guessed": True,
                "source": ["pci.ids-2026"],
            }
        )
        return self._guessed[name]


def not_listed(first: Mapping[str, str], read: Iterable[str]) -> dict[str, str]:
    """Return, by device id, the newest release of the same branch before the first that lists the device;
    without the devices that have none.

    Args:
        first: device id → the oldest release that lists it.
        read: releases whose lists were read.
    """
    found = {}
    for device, listed in first.items():
        at = version(listed)
        before = (each for each in map(version, read) if each.major == at.major and each < at)
        if newest := max(before, key=lambda each: each.parts, default=None):
            found[device] = str(newest)
    return found


def _fields(row: Row, releases: tuple[str, ...]) -> dict[str, Any]:
    """Convert a row to the fields of a GPU's record.

    Args:
        releases: those whose lists of devices were read.
    """
    listed = {device: release for device, release in row["devices"].items() if release}
    fields = {
        "id": row["id"],
        "nvidia_smi_name": row["name"],
        "aliases": row.get("lspci", []),
        "pci_device_ids": list(row["devices"]),
        "listed_only": True,
        "first_listed": listed,
        "not_listed": not_listed(listed, releases),
        "unseen_branches": row.get("unseen", []),
        "open_module_first_release_listing_device": row.get("open_since"),
    }
    if listed:
        fields["min_driver_branch"] = min(int(release.split(".")[0]) for release in listed.values())
    same = ("segment", "compute_capability", "memory_gb", "subsystems", "since", "source", "doubts", "note")
    return fields | {
        name: row[name] for name in (*same, "superchip", "mig", "ecc", "max_driver_branch") if name in row
    }


_OF_CHIP = ("compute_capability", "superchip", "open_kernel_module", "max_driver_branch")
_MOST_CAREFUL = {"segment": "unknown", "forward_compat": "no", "ecc": None, "mig": None, "memory_gb": None}
"""Values for a GPU that represents several models with one device id which differ in the field."""


def one_of_all(device: str, gpus: tuple[GpuModel, ...]) -> GpuModel | None:
    """Return one GPU for a device id that several models share; None if their chips differ.

    Other fields that differ have the most careful value.
    """
    first = gpus[0]

    def differ(name: str) -> bool:
        return any(getattr(gpu, name) != getattr(first, name) for gpu in gpus)

    if any(map(differ, _OF_CHIP)):
        return None
    listed = [gpu.first_listed[device] for gpu in gpus if device in gpu.first_listed]
    careful: dict[str, Any] = {name: value for name, value in _MOST_CAREFUL.items() if differ(name)}
    return replace(
        first,
        id=f"10DE:{device}",
        nvidia_smi_name=" / ".join(dict.fromkeys(gpu.nvidia_smi_name for gpu in gpus)),
        aliases=(),
        pci_device_ids=(device,),
        pci_subsystem_example=None,
        subsystems={},
        first_listed={device: min(listed)} if listed else {},
        not_listed={},
        clocks_mhz={},
        application_clocks_max_aws={},
        note=f"device {device} is one of {', '.join(gpu.id for gpu in gpus)}: its subsystem tells which",
        **careful,
    )
