"""Simulation of nvidia-smi topo and nvidia-smi nvlink: the links between GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .driver import Driver, NvmlError
from .machine import SimGpu

_USAGE = 2
_LINK_WORDS = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks"""
_PEER_WORDS = """
Legend:

  X    = Self
  OK   = Status Ok
  CNS  = Chipset not supported
  GNS  = GPU not supported
  TNS  = Topology not supported
  NS   = Not supported
  U    = Unknown"""


def answer(driver: Driver, command: str, arguments: list[str]) -> Iterable[str]:
    """Return the lines of `topo -m`, `topo -p2p MODE` (the same for every mode) or `nvlink -s [-i INDEX]`.

    Raises:
        NvmlError: any other option, or no GPU.
    """
    if not driver.gpus:
        raise NvmlError(6, "No devices were found")
    if command == "topo" and arguments in (["-m"], ["--matrix"]):
        return _matrix(driver)
    if command == "topo" and len(arguments) == 2 and arguments[0] == "-p2p":
        return _peers(driver)
    if command == "nvlink" and arguments and arguments[0] in ("-s", "--status"):
        wanted = arguments[2] if arguments[1:2] == ["-i"] and len(arguments) > 2 else None
        return _links(driver, [gpu for gpu in driver.gpus if wanted in (None, str(gpu.number))])
    wrong = " ".join(arguments) or "none"
    raise NvmlError(_USAGE, f"Invalid option for {command}: {wrong}. Please run 'nvidia-smi {command} -h'.")


def _matrix(driver: Driver) -> Iterator[str]:
    """Yield the matrix of connections between GPUs, with the CPUs near each, and its legend."""
    columns = [f"GPU{gpu.number}" for gpu in driver.gpus]
    yield "\t" + "\t".join([*columns, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    for gpu in driver.gpus:
        links = [_link(driver, gpu, other) for other in driver.gpus]
        cpus = driver.machine.cpus[gpu.numa_node]
        yield "\t".join([f"GPU{gpu.number}", *links, cpus, str(gpu.numa_node), "", "N/A"])
    yield _LINK_WORDS


def _link(driver: Driver, one: SimGpu, other: SimGpu) -> str:
    """Return the connection of two GPUs in the matrix: `X`, the machine's NVLink, `NODE` or `SYS`."""
    if one is other:
        return " X "
    if driver.machine.links:
        return driver.machine.links
    return "NODE" if one.numa_node == other.numa_node else "SYS"


def _peers(driver: Driver) -> Iterator[str]:
    """Yield the matrix of peer access, in which all is `OK`, and its legend."""
    yield " \t" + "".join(f"GPU{gpu.number}\t" for gpu in driver.gpus)
    for gpu in driver.gpus:
        words = ("X" if gpu is other else "OK" for other in driver.gpus)
        yield f" GPU{gpu.number}\t" + "".join(f"{word}\t" for word in words)
    yield _PEER_WORDS


def _links(driver: Driver, gpus: list[SimGpu]) -> Iterator[str]:
    """Yield the NVLinks of each GPU with their rate; nothing on a machine without."""
    nvlink = driver.machine.model.nvlink
    if nvlink is None or not driver.machine.links:
        return
    for gpu in gpus:
        yield f"GPU {gpu.number}: {driver.machine.model.name} (UUID: {gpu.uuid})"
        for link in range(nvlink["links"]):
            yield f"\t Link {link}: {nvlink['rate']}"
