"""Drift of this machine, without SSH."""

from __future__ import annotations

from collections.abc import Sequence

from gpuprov.drift.judge import NodeDrift, judge_answer
from gpuprov.drift.probe_request import as_root, drift_parameters
from gpuprov.errors import InvalidInput
from gpuprov.model.lock import Lock
from gpuprov.probe.collect import collect_local
from gpuprov.roles import expectations


def survey_here(lock: Lock, names: Sequence[str]) -> list[NodeDrift]:
    """Return the drift of this machine, which is the named node, as the only item.

    Raises:
        InvalidInput: several nodes are named, or none.
        NodeFailed: no root rights here, or no answer from the probe.
    """
    if len(names) != 1:
        raise InvalidInput(f"this machine is one node, not {len(names)}", do="name one node of the lock")
    group = lock.group_of(names[0])
    facts = as_root(collect_local(drift_parameters(group)), "this user")
    return [judge_answer(names[0], facts, expectations(group))]
