"""Application of all load rules to one sample, in order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuprov.doctor.fault import Fault, limited, listed
from gpuprov.doctor.judge import titles
from gpuprov.doctor.load import gpus, host, programs
from gpuprov.doctor.load.questions import LoadRule, figures, workers
from gpuprov.doctor.load.sample import Sample
from gpuprov.untrusted import shell

ORDER = (
    gpus.throttled,
    programs.straggler,
    host.swapping,
    host.storage,
    host.one_core,
    host.all_cores,
    host.pcie,
    host.network,
    programs.hang,
    programs.idle_holder,
    programs.one_of_several,
    programs.shared,
    gpus.memory_bound,
    gpus.small_kernels,
    gpus.compute_bound,
)
"""Rules in order: an explanation of others comes before them."""
LOAD_RULES: dict[str, LoadRule] = {each.rule.name: each for each in ORDER}


def judge_load(raw: Any) -> list[Fault]:
    """Return the findings of all load rules in their order, so the verdict first; one hint if there are none.

    Raises:
        KeyError, TypeError, ValueError, NodeFailed: the sample has another form.
    """
    sample = Sample(raw)
    found: list[Fault] = []
    for name, known in LOAD_RULES.items():
        faults = limited(known.judge(sample))
        found += [replace(each, rule=name, source=titles(known.rule.source)) for each in faults]
    return found or [_nothing(sample)]


def _nothing(sample: Sample) -> Fault:
    """Return the hint that no bottleneck was found, or that no process uses a GPU."""
    result = tuple(map(figures, sample.gpus))
    text = "no bottleneck found" if workers(sample) else "no process uses a GPU"
    return Fault(
        "hint",
        f"{text}: {listed(list(result), 2)}",
        result,
        "as sampled",
        (shell("sample longer"),),
        rule="load.none",
    )
