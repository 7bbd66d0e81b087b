"""GPUs that the driver reports."""

from __future__ import annotations

from gpuprov.probe.facts import Facts, Missing
from gpuprov.probe.parse.gpu import Gpu


def gpus_of(facts: Facts) -> tuple[Gpu, ...]:
    """Return the GPUs of nvidia-smi.

    Raises:
        Missing: nvidia-smi does not answer.
    """
    if facts.smi.error:
        raise Missing("smi", facts.smi.error)
    return facts.smi.gpus
