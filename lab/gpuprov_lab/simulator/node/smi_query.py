"""Simulation of nvidia-smi's detailed output: -q as text and XML, --query-gpu and related options as CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from .answers import now
from .driver import Driver, NvmlError
from .layout import query_fields, query_lines, query_text, query_xml
from .machine import SimGpu
from .values import cuda_version, values_of

Question = Callable[[Driver, list[SimGpu], dict[str, str]], Iterable[str]]

_USAGE = 2
_USED_MEMORY = "used_gpu_memory [MiB]"
_SECTIONS = (
    *("MEMORY", "UTILIZATION", "ECC", "TEMPERATURE", "POWER", "CLOCK", "COMPUTE", "PIDS", "PERFORMANCE"),
    *("SUPPORTED_CLOCKS", "PAGE_RETIREMENT", "ACCOUNTING", "ENCODER_STATS", "FBC_STATS", "ROW_REMAPPER"),
    *("VOLTAGE", "RESET_STATUS", "SUPPORTED_GPU_TARGET_TEMP"),
)


def query(driver: Driver, gpus: list[SimGpu], options: dict[str, str]) -> Iterable[str]:
    """Return the lines of `-q`, with `-x` as XML, with `-d` only some sections.

    Raises:
        NvmlError: options that cannot be combined, or an unknown section.
    """
    if "display" not in options:
        return _xml(driver, gpus) if "xml" in options else _text(driver, gpus, frozenset())
    if "xml" in options:
        raise NvmlError(
            _USAGE,
            "Invalid combination of input arguments: --display/-d flags can not be combined with "
            "-x/--xml-format flags.",
        )
    sections = frozenset(options["display"].split(","))
    if not sections <= set(_SECTIONS):
        raise NvmlError(_USAGE, "Failed to parse --display/-d flags")
    return _text(driver, gpus, sections)


def query_gpu(driver: Driver, gpus: list[SimGpu], options: dict[str, str]) -> Iterable[str]:
    """Return the lines of `--query-gpu=FIELDS --format=csv[,noheader][,nounits]`; raise NvmlError for an
    unknown field.
    """
    known = query_fields()
    names = [name.strip() for name in options["query-gpu"].split(",")]
    for name in names:
        if name not in known:
            raise NvmlError(_USAGE, f'Field "{name}" is not a valid field to query.\n')
    fields = [known[name] for name in names]
    header = [
        f"{name} [{field.unit}]" if field.unit and _units(options) else name
        for name, field in zip(names, fields, strict=True)
    ]
    rows = []
    for gpu in gpus:
        values = values_of(driver, gpu)
        cells = [field.value.format_map(values) for field in fields]
        rows.append([_cell(cell, field.unit, options) for cell, field in zip(cells, fields, strict=True)])
    return _csv(header, rows, options)


def query_supported_clocks(driver: Driver, gpus: list[SimGpu], options: dict[str, str]) -> Iterable[str]:
    """Return the lines of `--query-supported-clocks=gr,mem`: every combination, for each GPU; raise NvmlError
    for an unknown field.
    """
    headers = {"gr": "graphics", "graphics": "graphics", "mem": "memory", "memory": "memory"}
    names = [name.strip() for name in options["query-supported-clocks"].split(",")]
    for name in names:
        if name not in headers:
            raise NvmlError(_USAGE, f'Field "{name}" is not a valid field to query.\n')
    rows = []
    for memory, clocks in driver.machine.model.supported_clocks().items():
        for graphics in clocks:
            clock = {"graphics": f"{graphics} MHz", "memory": f"{memory} MHz"}
            rows.append([_cell(clock[headers[name]], "MHz", options) for name in names])
    unit = " [MHz]" if _units(options) else ""
    return _csv([headers[name] + unit for name in names], rows * len(gpus), options)


def query_compute_apps(driver: Driver, gpus: list[SimGpu], options: dict[str, str]) -> Iterable[str]:
    """Return the output of `--query-compute-apps=FIELDS`: a header without rows, as no programs are
    simulated. Raise NvmlError for an unknown field.
    """
    headers = {name: name for name in ("pid", "process_name", "gpu_uuid", "gpu_name", "gpu_bus_id")}
    headers |= {"name": "process_name", "used_memory": _USED_MEMORY, "used_gpu_memory": _USED_MEMORY}
    names = [name.strip() for name in options["query-compute-apps"].split(",")]
    for name in names:
        if name not in headers:
            raise NvmlError(_USAGE, f'Field "{name}" is not a valid field to query.\n')
    return _csv([headers[name] for name in names], [], options)


QUESTIONS: dict[str, Question] = {
    "query": query,
    "query-gpu": query_gpu,
    "query-supported-clocks": query_supported_clocks,
    "query-compute-apps": query_compute_apps,
}
"""Option name to the function of its output."""


def _text(driver: Driver, gpus: list[SimGpu], sections: frozenset[str]) -> Iterator[str]:
    """Yield the lines of `-q` for GPUs, of `sections` only if it is not empty."""
    yield "\n==============NVSMI LOG==============\n"
    yield f"{'Timestamp':<55}: {now()}"
    yield f"{'Driver Version':<55}: {driver.version}"
    yield f"{'CUDA Version':<55}: {cuda_version(driver.branch)}\n"
    yield f"{'Attached GPUs':<55}: {len(driver.gpus)}"
    lines = query_lines(driver.branch, driver.machine.model.features)
    for gpu in gpus:
        yield f"GPU {gpu.bus_id}"
        yield from query_text(lines, values_of(driver, gpu), sections)
        if "SUPPORTED_CLOCKS" in sections:
            yield from _supported_clocks_text(driver)
        yield ""


def _supported_clocks_text(driver: Driver) -> Iterator[str]:
    """Yield the lines of `-q -d SUPPORTED_CLOCKS`: each memory clock with its graphics clocks."""
    yield "    Supported Clocks"
    for memory, clocks in driver.machine.model.supported_clocks().items():
        yield f"{'        Memory':<55}: {memory} MHz"
        for graphics in clocks:
            yield f"{'            Graphics':<55}: {graphics} MHz"


def _xml(driver: Driver, gpus: list[SimGpu]) -> Iterator[str]:
    """Yield the XML document; its type changed from nvsmi_device_v12 to v13 with branch 580."""
    yield '<?xml version="1.0" ?>'
    yield f'<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v{13 if driver.branch >= 580 else 12}.dtd">'
    yield "<nvidia_smi_log>"
    yield f"\t<timestamp>{now()}</timestamp>"
    yield f"\t<driver_version>{driver.version}</driver_version>"
    yield f"\t<cuda_version>{cuda_version(driver.branch)}</cuda_version>"
    yield f"\t<attached_gpus>{len(driver.gpus)}</attached_gpus>"
    lines = query_lines(driver.branch, driver.machine.model.features)
    clocks = list(_supported_clocks_xml(driver))
    for gpu in gpus:
        yield f'\t<gpu id="{gpu.bus_id}">'
        parts = {"SUPPORTED_CLOCKS": clocks, "MIG_DEVICES": list(_instances_xml(driver, gpu))}
        yield from query_xml(lines, values_of(driver, gpu), parts)
        yield "\t</gpu>\n"
    yield "</nvidia_smi_log>"


def _instances_xml(driver: Driver, gpu: SimGpu) -> Iterator[str]:
    """Yield the ids of a GPU's MIG devices; their memory and errors are not simulated."""
    instances = driver.settings.of(gpu).get("instances", [])
    for number, _ in enumerate(instances):
        yield "\t\t\t<mig_device>"
        yield f"\t\t\t\t<index>{number}</index>"
        yield f"\t\t\t\t<gpu_instance_id>{number + 1}</gpu_instance_id>"
        yield "\t\t\t\t<compute_instance_id>0</compute_instance_id>"
        yield "\t\t\t</mig_device>"
    if not instances:
        yield "\t\t\tNone"


def _supported_clocks_xml(driver: Driver) -> Iterator[str]:
    """Yield the supported clocks as XML elements."""
    yield "\t\t<supported_clocks>"
    for memory, clocks in driver.machine.model.supported_clocks().items():
        yield "\t\t\t<supported_mem_clock>"
        yield f"\t\t\t\t<value>{memory} MHz</value>"
        for graphics in clocks:
            yield f"\t\t\t\t<supported_graphics_clock>{graphics} MHz</supported_graphics_clock>"
        yield "\t\t\t</supported_mem_clock>"
    yield "\t\t</supported_clocks>"


def _csv(header: list[str], rows: list[list[str]], options: dict[str, str]) -> Iterator[str]:
    """Yield rows as CSV, after the header unless `noheader` is requested."""
    if "noheader" not in options.get("format", "csv"):
        yield ", ".join(header)
    for row in rows:
        yield ", ".join(row)


def _cell(value: str, unit: str, options: dict[str, str]) -> str:
    """Return a value in CSV: without its unit if requested, and in brackets if missing."""
    if value in ("N/A", "Requested functionality has been deprecated"):
        return f"[{value}]"
    return value if _units(options) or not unit else value.removesuffix(f" {unit}")


def _units(options: dict[str, str]) -> bool:
    """Return whether units are shown: unless `nounits` is requested."""
    return "nounits" not in options.get("format", "csv")
