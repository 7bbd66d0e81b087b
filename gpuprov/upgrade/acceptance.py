"""Acceptance of upgraded nodes under GPU load, before they return to service."""

from __future__ import annotations

from pathlib import Path

from gpuprov.accept.floors import of_lock
from gpuprov.accept.judge import document, judge
from gpuprov.accept.run import measure_there
from gpuprov.model.documents import write_text
from gpuprov.ssh.transport import targets
from gpuprov.untrusted import json_text
from gpuprov.upgrade.context import UpgradeContext

KEPT = "accept.json"


def accepted(context: UpgradeContext, names: list[str], folder: Path) -> dict[str, str]:
    """Measure nodes under load; return node → why it was not accepted; {} if `rollout.accept` has no level.

    The results are written to `accept.json` in the folder. The nodes are drained, so an installed scheduler
    starts no jobs on them. A node without a result, or with a failure, is not accepted.
    """
    level = context.rollout.accept
    if level is None or not names:
        return {}
    options = context.options
    nodes = targets(context.lock, names)
    answers = dict(measure_there(nodes, level, dispatch=options.dispatch, drained=True))
    judged = judge(answers, of_node=of_lock(context.lock))
    write_text(folder / KEPT, json_text(document(judged), indent=1) + "\n")
    failed = {name: "accept: there is no result of this node" for name in names if name not in answers}
    for each in judged:
        if each.failure is not None:
            failed[each.node] = f"accept: {each.failure}"
        elif each.faults:
            more = f" and {len(each.faults) - 1} more" if len(each.faults) > 1 else ""
            failed[each.node] = f"accept: {each.faults[0].text}{more}"
    return failed
