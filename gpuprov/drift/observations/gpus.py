"""The GPUs that the driver answers for."""

from __future__ import annotations

from gpuprov.probe.facts import Facts, Missing
from gpuprov.probe.parse.gpu import Gpu


def gpus_of(facts: Facts) -> tuple[Gpu, ...]:
    """The GPUs as nvidia-smi tells.

    Raises:
        Missing: it has no answer.
    """
    if facts.smi.error:
        raise Missing("smi", facts.smi.error)
    return facts.smi.gpus
