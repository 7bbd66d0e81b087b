"""Simulation of nvidia-smi without options: the table of GPUs and processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .answers import now
from .driver import Driver
from .machine import SimGpu
from .values import cuda_version, values_of

_COMPUTE = {"Exclusive_Thread": "E. Thread", "Exclusive_Process": "E. Process"}
_NAME_WIDTH = 27


@dataclass(frozen=True)
class _Shape:
    """The table of a range of driver branches; widths of its three columns in characters."""

    left: int
    middle: int
    right: int
    title: str
    first_rule: str
    headings: tuple[str, str, str]
    gap: str
    processes: tuple[str, str]

    def rule(self, fill: str = "-", edge: str = "+") -> str:
        """Return a horizontal line across the three columns, with a `+` between them."""
        return edge + "+".join(fill * width for width in (self.left, self.middle, self.right)) + edge

    @property
    def line(self) -> str:
        """A horizontal line without columns."""
        return "+" + "-" * (self.left + self.middle + self.right + 2) + "+"


_WIDE = _Shape(
    left=41,
    middle=24,
    right=22,
    title="| NVIDIA-SMI {version:<10}             Driver Version: {version:<10}     CUDA Version: {cuda:<9}|",
    first_rule="+",
    headings=(
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|                                         |                        |               MIG M. |",
    ),
    gap="",
    processes=(
        "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
        "|        ID   ID                                                               Usage      |",
    ),
)
_NARROW = _Shape(
    left=41,
    middle=22,
    right=22,
    title="| NVIDIA-SMI {version:<10}             Driver Version: {version:<10}   CUDA Version: {cuda:<9}|",
    first_rule="|",
    headings=(
        "| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |",
        "|                                         |                      |               MIG M. |",
    ),
    gap=" " * 89,
    processes=(
        "|  GPU   GI   CI        PID   Type   Process name                            GPU Memory |",
        "|        ID   ID                                                             Usage      |",
    ),
)


def table(driver: Driver, gpus: list[SimGpu], options: dict[str, str]) -> Iterable[str]:
    """Yield the lines of the summary; it became two characters wider with branch 550."""
    shape = _WIDE if driver.branch >= 550 else _NARROW
    yield f"{now()}       "
    yield shape.line
    yield shape.title.format(version=driver.version, cuda=cuda_version(driver.branch))
    yield shape.rule(edge=shape.first_rule)[:-1] + "+"
    yield from shape.headings
    yield shape.rule("=", "|")
    for gpu in gpus:
        yield from _rows(shape, values_of(driver, gpu))
    yield shape.gap
    yield shape.line
    width = len(shape.line) - 2
    yield f"|{' Processes:':<{width}}|"
    yield from shape.processes
    yield "|" + "=" * width + "|"
    yield f"|{'  No running processes found':<{width}}|"
    yield shape.line


def _rows(shape: _Shape, values: dict[str, str]) -> Iterator[str]:
    """Yield the lines of one GPU, with the rule below."""
    persistence = "On" if values["persistence"] == "Enabled" else "Off"
    ecc = {"Enabled": "0", "Disabled": "Off"}.get(values["ecc_current"], "N/A")
    compute = _COMPUTE.get(values["compute_mode"], values["compute_mode"])
    name = values["name"]
    short = name if len(name) <= _NAME_WIDTH else name[: _NAME_WIDTH - 3] + "..."
    fan = values["fan"].replace(" ", "")
    draw = f"{float(values['power_average']):.0f}W / {float(values['power_limit']):>{shape.middle - 20}.0f}W "
    left = f"{fan:>4}{values['temperature']:>5}C    {values['pstate']:<4}"
    used = f"0MiB / {values['memory_total']:>{shape.middle - 18}}MiB "
    yield (
        f"|{values['minor']:>4}  {short:<{_NAME_WIDTH}}    {persistence:<3} "
        f"|{values['bus_id'] + ' Off ':>{shape.middle}}|{ecc:>21} |"
    )
    yield f"|{left}{draw:>{shape.left - len(left)}}|{used:>{shape.middle}}|{'0%':>8}{compute:>13} |"
    yield f"|{'':{shape.left}}|{'':{shape.middle}}|{values['mig_current']:>21} |"
    yield shape.rule()
