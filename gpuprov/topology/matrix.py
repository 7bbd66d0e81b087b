"""Parser of the matrix of `nvidia-smi topo -m`, as printed by any driver from 340 on.

The columns grew over the years: GPUs and `CPU Affinity` first, then NICs by RDMA name (`mlx5_0`), then
NICs as `NIC0` with a legend below, `NUMA Affinity`, `GPU NUMA ID`. Headers may be underlined by terminal
codes, and tabs become spaces when a user pastes the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, takewhile

from gpuprov.errors import InvalidInput
from gpuprov.untrusted.parsing import whole_number

SCHEMA = "gpuprov.topo/1"
COLUMNS = 256
"""Maximum number of devices in a matrix: time and memory grow with its square. A machine with 16 GPUs and a
NIC for each has 32.
"""

_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\[[0-9;]+m")
_HEADINGS = {"cpus": r"CPU\s+Affinity", "numa": r"NUMA\s+Affinity", "gpu_numa": r"GPU\s+NUMA\s+ID"}
_ANY_HEADING = re.compile("|".join(_HEADINGS.values()))
_GPU = re.compile(r"GPU\d+")
_DEVICE = re.compile(r"[A-Za-z][\w.:-]*")
_CELL = re.compile(r"X|NV\d+|PSB|PIX|PXB|PHB|NODE|SYS|SOC|C2C|N/A|NS|UNK|ERR!?|\?+")
_LEGEND = re.compile(r"\s*(NIC\d+)\s*:\s*(\S+)\s*")
_MESSAGE = 1000
"""Characters of a line that are searched for an error message."""
_DRIVER_ERROR = re.compile(
    r"NVIDIA-SMI has failed|Failed to initialize NVML|couldn't communicate|No devices were found"
    r"|Driver/library version mismatch|Unable to determine the device handle|GPU is lost"
    r"|Insufficient Permissions|Unknown Error|command not found|No such file or directory"
    r"|Not Supported|Invalid combination of input arguments|NVML library|Failed to .*topology",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class MatrixNic:
    """A NIC of the matrix: the name of its column, and its RDMA device (`mlx5_0`)."""

    name: str
    device: str


@dataclass(frozen=True)
class Link:
    """A connection of two devices: the cell of the matrix (`PIX`, `NV18`), and its number of NVLinks."""

    a: str
    b: str
    kind: str
    nvlinks: int | None


@dataclass(frozen=True)
class Affinity:
    """The nearest resources of a GPU: CPUs (`0-23,48-71`), NUMA node or nodes, the GPU's own NUMA node."""

    cpus: str | None = None
    numa: int | str | None = None
    gpu_numa: int | str | None = None


@dataclass(frozen=True)
class Topology:
    """One node's matrix; `matrix[a][b]` is the cell as printed, also if only `b`'s row had it."""

    gpus: tuple[str, ...]
    nics: tuple[MatrixNic, ...]
    matrix: dict[str, dict[str, str]]
    affinity: dict[str, Affinity] = field(default_factory=dict)

    def link(self, a: str, b: str) -> Link:
        """Return the link between two devices, by their column names."""
        kind = self.matrix[a].get(b, "N/A")
        return Link(a, b, kind, nvlinks(kind))

    @property
    def links(self) -> Iterator[Link]:
        """Return every pair of devices with a cell, each once, in the order of the columns."""
        names = [*self.gpus, *(nic.name for nic in self.nics)]
        return (self.link(a, b) for a, b in combinations(names, 2) if b in self.matrix[a])

    @property
    def gpu_pairs(self) -> list[Link]:
        """Return every pair of GPUs once."""
        return [self.link(a, b) for a, b in combinations(self.gpus, 2)]


def nvlinks(kind: str) -> int | None:
    """Return the number of NVLinks of a cell: 18 for `NV18`, None for any other text."""
    return whole_number(kind[2:]) if kind.startswith("NV") else None


def driver_error(text: str) -> str | None:
    """Return the driver's or the shell's error message if the text contains one and no matrix, else None."""
    lines = [line.strip() for line in _TERMINAL_CODES.sub("", text).splitlines() if line.strip()]
    failed = any(_DRIVER_ERROR.search(line[:_MESSAGE]) for line in lines)
    if not failed or any(_is_header(line) for line in lines):
        return None
    return " ".join(lines[:4])


def parse_topology(text: str) -> Topology:
    """Parse the matrix in `text`; ignore anything around it (prompts, fences, a second matrix).

    Raises:
        InvalidInput: there is no matrix in the text, or none with a readable row of a GPU; or a matrix with
            more than `COLUMNS` devices, or with one of them twice.
    """
    lines = [_TERMINAL_CODES.sub("", line).rstrip() for line in text.splitlines()]
    start = next((number for number, line in enumerate(lines) if _is_header(line)), None)
    if start is None:
        raise InvalidInput(
            "no topology matrix in the text" if text.strip() else "the text is empty",
            expected="the output of `nvidia-smi topo -m`: a header of GPU0, GPU1, …, a row for each device",
        )
    columns = _columns(lines[start])
    headings = [name for name, words in _HEADINGS.items() if re.search(words, lines[start])]
    matrix, affinity, legend = _rows(lines[start + 1 :], columns, headings)
    gpus = tuple(name for name in columns if _GPU.fullmatch(name))
    nics = tuple(MatrixNic(name, legend.get(name, name)) for name in columns if not _GPU.fullmatch(name))
    full = _mirrored(matrix, columns)
    if not any(gpu in matrix for gpu in gpus) or (len(gpus) > 1 and all(len(full[gpu]) < 2 for gpu in gpus)):
        raise InvalidInput(
            f"a header of {len(gpus)} GPUs without a readable row",
            expected="rows such as `GPU0  X  NV18  PIX …`, as `nvidia-smi topo -m` (not `-p2p`) prints them",
        )
    return Topology(gpus, nics, full, affinity)


def _columns(header: str) -> list[str]:
    """Return the devices of a header, in their order.

    Raises:
        InvalidInput: there are more than `COLUMNS`, or one is repeated.
    """
    names = _ANY_HEADING.sub(" ", header).split()
    if len(names) > COLUMNS or len(set(names)) < len(names):
        twice = "" if len(names) > COLUMNS else ", one of them twice"
        raise InvalidInput(
            f"a header of {len(names)} devices{twice}", expected=f"at most {COLUMNS} devices, each once"
        )
    return names


def _is_header(line: str) -> bool:
    """Return whether a line is the matrix's header: device names, from a GPU on, and headings of
    affinities.
    """
    words = _ANY_HEADING.sub(" ", line).split()
    return (
        bool(words)
        and _GPU.fullmatch(words[0]) is not None
        and all(_DEVICE.fullmatch(word) and not _CELL.fullmatch(word) for word in words)
        and (len(words) == 1 or _GPU.fullmatch(words[1]) is not None or _ANY_HEADING.search(line) is not None)
    )


Rows = tuple[dict[str, dict[str, str]], dict[str, Affinity], dict[str, str]]


def _rows(lines: list[str], columns: list[str], headings: list[str]) -> Rows:
    """Return row → column → cell, GPU → affinity, and the NIC legend (`NIC0` → `mlx5_0`), up to the next
    matrix.
    """
    matrix: dict[str, dict[str, str]] = {}
    affinity: dict[str, Affinity] = {}
    legend: dict[str, str] = {}
    devices = set(columns)
    for line in lines:
        if _is_header(line):
            break
        if named := _LEGEND.fullmatch(line):
            legend[named[1]] = named[2]
            continue
        name = next(iter(line.split()), "")
        if name not in devices or name in matrix:
            continue
        cells, rest = _cells(line, len(columns))
        if cells:
            matrix[name] = dict(zip(columns, cells, strict=False))
            if _GPU.fullmatch(name):
                affinity[name] = _affinity(rest, headings)
    return matrix, affinity, legend


def _cells(line: str, count: int) -> tuple[list[str], str]:
    """Return up to `count` cells after the row's name, and the rest of the line."""
    words = list(re.finditer(r"\S+", line))
    cells = list(takewhile(lambda word: _CELL.fullmatch(word[0]), words[1 : count + 1]))
    return [cell[0] for cell in cells], line[cells[-1].end() :] if cells else ""


def _affinity(rest: str, headings: list[str]) -> Affinity:
    """Parse the columns after the cells; split by tabs if there are any, since an empty column prints
    nothing.

    Some drivers print one tab too many before the last column, so that column is read from the right.
    """
    words = [word.strip() for word in rest.split("\t")[1:]] if "\t" in rest else rest.split()
    values: dict[str, str] = {}
    if "gpu_numa" in headings and len(words) >= len(headings):
        values["gpu_numa"] = words[-1]
    for name, word in zip(headings, words, strict=False):
        values.setdefault(name, word)
    return Affinity(_present(values.get("cpus")), _node(values.get("numa")), _node(values.get("gpu_numa")))


def _present(word: str | None) -> str | None:
    """Return a word; None for an empty one or `N/A`."""
    return None if word in (None, "", "N/A", "[N/A]", "None") else word


def _node(word: str | None) -> int | str | None:
    """Return a NUMA node as a number, several nodes as text, or None."""
    present = _present(word)
    return int(present) if present is not None and re.fullmatch(r"[0-9]{1,9}", present) else present


def _mirrored(matrix: dict[str, dict[str, str]], columns: list[str]) -> dict[str, dict[str, str]]:
    """Return the matrix with each missing cell copied from the other device's
    row, and a complete diagonal.
    """
    full: dict[str, dict[str, str]] = {}
    for a in columns:
        cells = {b: "X" if b == a else _either(matrix, a, b) for b in columns}
        full[a] = {b: kind for b, kind in cells.items() if kind}
    return full


def _either(matrix: dict[str, dict[str, str]], a: str, b: str) -> str | None:
    """Return the cell of a pair from the row of either device, or None."""
    return matrix.get(a, {}).get(b) or matrix.get(b, {}).get(a)
