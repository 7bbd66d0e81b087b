"""Readings of GPUs from NVML through ctypes, or from nvidia-smi if NVML cannot be loaded.

Names and values are those of nvml.h; a function that a GPU does not support gives None.
"""

import ctypes
import re

from gpuprov.probe.node.base import Failed, run_anyway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values

SM_CLOCK, CORE_TEMPERATURE, PCIE_SENT, PCIE_RECEIVED = 1, 0, 0, 1
VOLATILE, UNCORRECTED = 0, 1
QUERY = (
    "index,uuid,name,utilization.gpu,utilization.memory,power.draw,enforced.power.limit,clocks.sm,clocks.max.sm,"
    "clocks_throttle_reasons.active,memory.used,memory.total,temperature.gpu,persistence_mode,"
    "ecc.errors.uncorrected.volatile.total,pcie.link.gen.current,pcie.link.width.current"
)
"""Fields of nvidia-smi in the order of `_row`."""
REASONS = ("clocks_throttle_reasons", "clocks_event_reasons")
"""Older and newer name of the field of throttle reasons."""
TOO_SHORT, PROCESSES_AT_MOST = 7, 4096
"""NVML_ERROR_INSUFFICIENT_SIZE; maximum number of processes of one GPU that are read."""


class Utilization(ctypes.Structure):
    """nvmlUtilization_t: percent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Memory(ctypes.Structure):
    """nvmlMemory_t: bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Process(ctypes.Structure):
    """nvmlProcessInfo_t of the second and third version."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """NVML of this machine, initialised once.

    Raises:
        Failed: the library cannot be loaded or does not start.
    """

    def __init__(self) -> None:
        """Start NVML and find its GPUs, without those that it cannot open; Failed if it does not start."""
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
            self._started = self._library.nvmlInit_v2() == 0
        except (OSError, AttributeError):
            raise Failed("libnvidia-ml.so.1 cannot be loaded") from None
        count = ctypes.c_uint()
        if not self._started or self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            raise Failed("NVML does not start")
        self._handles = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                self._handles.append((index, handle))
        self._fixed = {}  # type: dict[int, Values]

    def read(self, traffic: bool = False) -> "list[Values]":
        """Return one reading of every GPU, a row with the keys of `_row`.

        `traffic` measures PCIe for 20 ms per direction and GPU; otherwise `sent_kb` and `received_kb` have
        None.
        """
        return [self._gpu(index, handle, traffic) for index, handle in self._handles]

    def _gpu(self, index: int, handle: "Any", traffic: bool) -> "Values":
        """Return the row of one GPU; None for a value that it does not have."""
        load, memory = Utilization(), Memory()
        has_load = self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(load)) == 0
        has_memory = self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
        reasons = ctypes.c_ulonglong()
        result = self._library.nvmlDeviceGetCurrentClocksThrottleReasons(handle, ctypes.byref(reasons)) == 0
        power, errors = self._number(handle, "PowerUsage"), ctypes.c_ulonglong()
        ecc = (
            self._library.nvmlDeviceGetTotalEccErrors(handle, UNCORRECTED, VOLATILE, ctypes.byref(errors))
            == 0
        )
        row = {
            "index": index,
            "gpu": load.gpu if has_load else None,
            "memory": load.memory if has_load else None,
            "used_mib": memory.used >> 20 if has_memory else None,
            "power_w": None if power is None else power / 1000.0,
            "clock": self._number(handle, "ClockInfo", SM_CLOCK),
            "temperature": self._number(handle, "Temperature", CORE_TEMPERATURE),
            "reasons": reasons.value if result else None,
            "ecc": errors.value if ecc else None,
            "sent_kb": self._number(handle, "PcieThroughput", PCIE_SENT) if traffic else None,
            "received_kb": self._number(handle, "PcieThroughput", PCIE_RECEIVED) if traffic else None,
            "generation": self._number(handle, "CurrPcieLinkGeneration"),  # an idle link slows down
            "width": self._number(handle, "CurrPcieLinkWidth"),
        }
        row.update(self._what_stays(index, handle, memory.total >> 20 if has_memory else None))
        return row

    def _what_stays(self, index: int, handle: "Any", total: "int | None") -> "Values":
        """Return the values of a GPU that are read once: name, UUID, minor number, memory, power limit in W,
        highest SM clock, and persistence.
        """
        if index not in self._fixed:
            limit = self._number(handle, "EnforcedPowerLimit")
            self._fixed[index] = {
                "name": self._text(handle, "Name"),
                "uuid": self._text(handle, "UUID"),
                "minor": self._number(handle, "MinorNumber"),
                "limit_w": None if limit is None else limit / 1000.0,
                "max_clock": self._number(handle, "MaxClockInfo", SM_CLOCK),
                "persistence": self._number(handle, "PersistenceMode"),
                "total_mib": total,
            }
        return self._fixed[index]

    def processes(self) -> "dict[int, list[list[int]]]":
        """Return GPU -> [pid, MiB] of its compute processes, [] for none; without GPUs whose processes are
        not known.
        """
        found = {index: self._processes_of(handle) for index, handle in self._handles}
        return {index: rows for index, rows in found.items() if rows is not None}

    def _processes_of(self, handle: "Any") -> "list[list[int]] | None":
        """Return [pid, MiB] of the compute processes of one GPU; None if NVML fails, or for more than
        `PROCESSES_AT_MOST`.

        If the list is too short, NVML states the number of processes, which may grow until it is asked again.
        """
        name, size = "nvmlDeviceGetComputeRunningProcesses", 64
        ask = getattr(self._library, name + "_v3", None) or getattr(self._library, name + "_v2", None)
        while ask and size <= PROCESSES_AT_MOST:
            count, rows = ctypes.c_uint(size), (Process * size)()
            code = ask(handle, ctypes.byref(count), rows)
            if code == 0:
                return [[row.pid, int(row.used >> 20)] for row in rows[: count.value]]
            if code != TOO_SHORT:
                return None
            size = 2 * max(size, count.value)
        return None

    def _number(self, handle: "Any", name: str, *which: int) -> "int | None":
        """Return the number that nvmlDeviceGet<name> reports; None if it is missing or fails."""
        value = ctypes.c_uint()
        ask = getattr(self._library, "nvmlDeviceGet" + name, None)
        return value.value if ask is not None and ask(handle, *which, ctypes.byref(value)) == 0 else None

    def _text(self, handle: "Any", name: str) -> str:
        """Return the text that nvmlDeviceGet<name> reports; "" if it is missing or fails."""
        buffer = ctypes.create_string_buffer(96)
        ask = getattr(self._library, "nvmlDeviceGet" + name, None)
        return buffer.value.decode("utf-8", "replace") if ask and ask(handle, buffer, 96) == 0 else ""


class Smi:
    """Readings from nvidia-smi, one process per reading, for a machine without a loadable NVML."""

    def read(self, traffic: bool = False) -> "list[Values]":
        """Return one reading of every GPU, as `Nvml.read`; `traffic` is ignored: its values are always None.

        Raises:
            Failed: nvidia-smi failed.
        """
        for words in REASONS:
            fields = QUERY.replace(REASONS[0], words)
            code, out, err = run_anyway(
                "nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader,nounits", seconds=9
            )
            if code == 0:
                return [_row(line) for line in out.splitlines() if line.count(",") >= 16]
        raise Failed((out.strip() or err.strip() or "nvidia-smi failed")[:300])

    def processes(self) -> "dict[int, list[list[int]]]":
        """Return {}: the processes of no GPU are known."""
        return {}


def _row(line: str) -> "Values":
    """Return the reading of one GPU from a line of nvidia-smi's CSV.

    None for a value that is not available. PCIe traffic is not known, and the minor number is taken to be the
    index.
    """
    cells = [cell.strip() for cell in line.split(",")]
    number = [float(cell) if re.fullmatch(r"-?\d+(\.\d+)?", cell) else None for cell in cells]
    reasons = int(cells[9], 16) if re.fullmatch(r"0x[0-9a-fA-F]+", cells[9]) else None
    return {
        "index": int(number[0] or 0),
        "uuid": cells[1],
        "name": cells[2],
        "gpu": number[3],
        "memory": number[4],
        "power_w": number[5],
        "limit_w": number[6],
        "clock": number[7],
        "max_clock": number[8],
        "reasons": reasons,
        "used_mib": number[10],
        "total_mib": number[11],
        "temperature": number[12],
        "persistence": {"Enabled": 1, "Disabled": 0}.get(cells[13]),
        "ecc": number[14],
        "generation": number[15],
        "width": number[16],
        "minor": int(number[0] or 0),
        "sent_kb": None,
        "received_kb": None,
    }


def reader() -> "Nvml | Smi":
    """Return a reader of NVML, or of nvidia-smi if NVML is not available."""
    try:
        return Nvml()
    except Failed:
        return Smi()
