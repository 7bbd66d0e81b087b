"""nvidia-smi: its options, and the selection of GPUs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from . import smi_mig, smi_query, smi_settings, smi_table, smi_topology
from .answers import Answer
from .driver import Driver, NvmlError, library_version, nvml_version
from .files import Files
from .machine import SimGpu
from .values import cuda_version

USAGE = 2
NO_DEVICES = 6
LOST = 15
UNKNOWN_OPTION = 255
_HELP = "Please run 'nvidia-smi -h' for help."

_FLAGS = {
    "help": ("-h", "--help"),
    "version": ("--version",),
    "list": ("-L", "--list-gpus"),
    "query": ("-q", "--query"),
    "xml": ("-x", "--xml-format"),
    "help-query-gpu": ("--help-query-gpu",),
    "reset-applications": ("-rac", "--reset-applications-clocks"),
    "reset-graphics": ("-rgc", "--reset-gpu-clocks"),
    "reset-memory": ("-rmc", "--reset-memory-clocks"),
    "reset": ("-r", "--gpu-reset"),
}
_VALUED = {
    "id": ("-i", "--id"),
    "display": ("-d", "--display"),
    "file": ("-f", "--filename"),
    "query-gpu": ("--query-gpu",),
    "query-compute-apps": ("--query-compute-apps",),
    "query-supported-clocks": ("--query-supported-clocks",),
    "format": ("--format",),
    "persistence": ("-pm", "--persistence-mode"),
    "ecc": ("-e", "--ecc-config"),
    "compute": ("-c", "--compute-mode"),
    "mig": ("-mig", "--multi-instance-gpu"),
    "applications": ("-ac", "--applications-clocks"),
    "graphics": ("-lgc", "--lock-gpu-clocks"),
    "memory": ("-lmc", "--lock-memory-clocks"),
    "power": ("-pl", "--power-limit"),
}
_SPELLINGS = {
    spelling: (name, valued)
    for table, valued in ((_FLAGS, False), (_VALUED, True))
    for name, spellings in table.items()
    for spelling in spellings
}


def main(files: Files, arguments: list[str]) -> int:
    """Run nvidia-smi, whose output goes to stdout; return its exit status (nvidia-smi(1), "RETURN VALUE")."""
    try:
        if arguments and arguments[0] in ("topo", "nvlink"):
            return _write(smi_topology.answer(Driver(files), arguments[0], arguments[1:]))
        if arguments and arguments[0] == "mig":
            return smi_mig.mig(Driver(files), arguments[1:], _say)
        return _answer(files, arguments)
    except NvmlError as error:
        _write([str(error)])
        return error.code


def _parse(arguments: list[str]) -> dict[str, str]:
    """Return option name to its value, the empty string for options without.

    Raises:
        NvmlError: an option is unknown, or lacks its value.
    """
    options: dict[str, str] = {}
    words = list(arguments)
    while words:
        spelling, equals, value = words.pop(0).partition("=")
        if spelling not in _SPELLINGS:
            text = f"ERROR: Option {spelling} is not recognized. Please run 'nvidia-smi -h'.\n"
            raise NvmlError(UNKNOWN_OPTION, text)
        name, valued = _SPELLINGS[spelling]
        if valued and not equals:
            if not words:
                raise NvmlError(USAGE, f"ERROR: Option {spelling} requires an argument. {_HELP}\n")
            value = words.pop(0)
        options[name] = value
    return options


def _answer(files: Files, arguments: list[str]) -> int:
    """Run the options of nvidia-smi: print what they ask for, or change one setting; return the exit status.

    Raises:
        NvmlError: nvidia-smi would fail.
    """
    options = _parse(arguments)
    if "help" in options:
        return _write([_help(files)])
    driver = Driver(files)
    if "version" in options:
        return _write(_versions(driver))
    if "list" in options:
        if "id" in options:
            raise NvmlError(USAGE, f"ERROR: Option -i is not valid for this command. {_HELP}\n")
        return _write(_list(driver))
    gpus = _selected(driver, options.get("id"))
    changes = smi_settings.CHANGES.keys() & options.keys()
    if len(changes) > 1:
        raise NvmlError(
            USAGE, "ERROR: Only one command can be run at a time. Please run 'nvidia-smi -h' for help."
        )
    for name in changes:
        return smi_settings.change(driver, gpus, name, options[name], _say)
    answer = Answer(str(files.root), arguments)
    said = "".join(f"{line}\n" for line in _question(options)(driver, gpus, options))
    answer.keep(said)
    sys.stdout.write(said)
    return 0


def _question(
    options: dict[str, str],
) -> Callable[[Driver, list[SimGpu], dict[str, str]], Iterable[str]]:
    """Return the function that answers the options; the summary table by default."""
    for name, question in smi_query.QUESTIONS.items():
        if name in options:
            return question
    return smi_table.table


def _selected(driver: Driver, wanted: str | None) -> list[SimGpu]:
    """Return GPUs by index, bus id or UUID (several with commas), all by default. Raises NvmlError for none
    and for a lost one.
    """
    gpus = [gpu for gpu in driver.gpus if wanted is None or _names(gpu) & set(wanted.split(","))]
    if not gpus:
        raise NvmlError(NO_DEVICES, "No devices were found")
    for gpu in gpus:
        if driver.lost(gpu):
            raise NvmlError(LOST, _lost(gpu))
    return gpus


def _names(gpu: SimGpu) -> set[str]:
    """Return all texts that name a GPU: index, UUID, bus id and address."""
    return {str(gpu.number), gpu.uuid, gpu.bus_id, gpu.address}


def _list(driver: Driver) -> Iterable[str]:
    """Yield a line for each GPU, as `-L` prints it. Raises NvmlError without GPUs."""
    if not driver.gpus:
        raise NvmlError(NO_DEVICES, "No devices found.")
    for gpu in driver.gpus:
        name = driver.machine.model.name
        yield _lost(gpu) if driver.lost(gpu) else f"GPU {gpu.number}: {name} (UUID: {gpu.uuid})"


def _lost(gpu: SimGpu) -> str:
    """Return nvidia-smi's message about a lost GPU."""
    reason = "GPU is lost.  Reboot the system to recover this GPU"
    return f"Unable to determine the device handle for gpu {gpu.address.upper()}: {reason}"


def _versions(driver: Driver) -> Iterable[str]:
    """Yield the lines of `--version`."""
    yield f"NVIDIA-SMI version  : {driver.version}"
    yield f"NVML version        : {nvml_version(driver.version)}"
    yield f"DRIVER version      : {driver.version}"
    yield f"CUDA Version        : {cuda_version(driver.branch)}"


def _help(files: Files) -> str:
    """Return the help text, with all options."""
    options = "\n".join(
        f"    {spellings[0]:<6}{', '.join(spellings[1:])}" for spellings in (_FLAGS | _VALUED).values()
    )
    version = library_version(files) or "unknown"
    return f"NVIDIA System Management Interface -- v{version}\n\nnvidia-smi [OPTION1 [ARG1]] ...\n\n{options}"


def _write(lines: Iterable[str]) -> int:
    """Print lines, and return exit status 0."""
    for line in lines:
        _say(line)
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
