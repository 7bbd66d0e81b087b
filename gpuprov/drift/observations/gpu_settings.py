"""Observations of GPU settings from nvidia-smi."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuprov.drift.observations.gpus import gpus_of
from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.drift.observations.units import commanded_by, own_unit_state
from gpuprov.probe.facts import Facts
from gpuprov.probe.parse.gpu import Gpu
from gpuprov.roles import Expectation

for _check in ("gpu.persistence_unit", "gpu.clocks_unit", "gpu.modes_unit"):
    observes(_check, "units")(own_unit_state)
    names_who(_check)(commanded_by)


@observes("gpu.persistence", "smi")
def _persistence(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected persistence mode if every GPU has it, else the differing ones as text; raises as
    `_on_every_gpu`.
    """
    return _on_every_gpu(facts, expectation.expected, lambda gpu: gpu.persistence_mode)


@observes("gpu.clocks", "smi")
def _clocks(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected clocks (MHz) if every GPU has them, else the differing ones as text; raises as
    `_on_every_gpu`.
    """
    return _on_every_gpu(facts, expectation.expected, lambda gpu: _fixed_clocks(gpu, expectation.expected))


@observes("gpu.power_range", "smi")
def _power_range(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected power limit (W) if every GPU allows it, else the ranges of the others as text;
    raises as `_on_every_gpu`.

    A GPU without a known range passes.
    """

    def allowed(gpu: Gpu) -> Any:
        least, most = gpu.power.minimum, gpu.power.maximum
        if least is None or most is None or least <= expectation.expected <= most:
            return None
        return f"{least:g} to {most:g}"

    return _where_there(facts, expectation.expected, allowed)


@observes("gpu.power_limit", "smi")
def _power_limit(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected power limit (W) if every GPU with a limit has it, else the others as text; raises
    as `_on_every_gpu`.
    """
    return _where_there(facts, expectation.expected, lambda gpu: gpu.power.limit)


@observes("gpu.compute_mode", "smi")
def _compute_mode(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected compute mode if every GPU with one has it, else the differing ones as text; raises
    as `_on_every_gpu`.
    """
    return _where_there(
        facts, expectation.expected, lambda gpu: gpu.compute_mode and gpu.compute_mode.lower()
    )


@observes("gpu.ecc_pending", "smi")
def _ecc_pending(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected ECC mode if every GPU with ECC gets it by a reboot, else the others as text; raises
    as `_on_every_gpu`.
    """
    return _where_there(facts, expectation.expected, lambda gpu: gpu.ecc.pending)


@observes("gpu.ecc", "smi")
def _ecc(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected ECC mode if every GPU with ECC has it now, else the differing ones as text; raises
    as `_on_every_gpu`.
    """
    return _where_there(facts, expectation.expected, lambda gpu: gpu.ecc.current)


@observes("gpu.mig_pending", "smi")
def _mig_pending(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected MIG mode if every GPU with MIG gets it by a reboot, else the others as text; raises
    as `_on_every_gpu`.
    """
    return _where_there(facts, expectation.expected, lambda gpu: gpu.mig.pending)


@observes("gpu.mig", "smi")
def _mig(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected MIG mode if every GPU with MIG has it now, else the differing ones as text; raises
    as `_on_every_gpu`.
    """
    return _where_there(facts, expectation.expected, lambda gpu: gpu.mig.current)


@observes("gpu.mig_layout", "smi", "mig")
def _mig_layout(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected GPU instances if every GPU has them, else the differing ones as text; raises as
    `_on_every_gpu`.

    A GPU whose MIG mode is still off has an empty list, one without MIG passes.
    """

    def layout(gpu: Gpu) -> list[str] | None:
        if gpu.mig.current is None:
            return None
        return list(facts.mig.get(gpu.index, ()))

    return _where_there(facts, expectation.expected, layout)


def _where_there(facts: Facts, expected: Any, read: Callable[[Gpu], Any]) -> Any:
    """Compare as `_on_every_gpu`, only on GPUs that have the setting: `read` returns None for the others;
    raises as that.

    The expected value if no GPU has it.
    """
    return _on_every_gpu(facts, expected, lambda gpu: expected if (value := read(gpu)) is None else value)


def _on_every_gpu(facts: Facts, expected: Any, read: Callable[[Gpu], Any]) -> Any:
    """Return `expected` if every GPU has it, else the differing values: `off on GPU 0, 3`.

    Raises:
        Missing: nvidia-smi does not answer.
    """
    odd: dict[str, list[str]] = {}
    for gpu in gpus_of(facts):
        value = read(gpu)
        if value != expected:
            odd.setdefault(_words(value), []).append(str(gpu.index))
    return "; ".join(f"{value} on GPU {', '.join(where)}" for value, where in odd.items()) or expected


def _words(value: Any) -> str:
    """Return a value as text: names with values, a list's items, `on` and `off`; `not stated` for None."""
    if isinstance(value, dict):
        return " ".join(f"{name} {each}" for name, each in value.items())
    if isinstance(value, list):
        return " ".join(value) or "none"
    return {True: "on", False: "off", None: "not stated"}.get(value, str(value))


def _fixed_clocks(gpu: Gpu, expected: dict[str, int]) -> dict[str, int | None]:
    """Return application clocks in MHz; of a GPU without them its current graphics clock, fixed by locking.

    The memory clock of such a GPU passes: it is returned as expected.
    """
    fixed = gpu.application_clocks
    if fixed.graphics is None and fixed.memory is None:
        return {"graphics": gpu.clocks.graphics, "memory": expected["memory"]}
    return {"graphics": fixed.graphics, "memory": fixed.memory}
