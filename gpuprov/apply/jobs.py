"""Use of a node's GPUs: an upgrade's gate and a reboot of this machine refuse by the rules of preflight."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import yaml

from gpuprov.errors import Refused
from gpuprov.files.resources import share
from gpuprov.finding import shortened
from gpuprov.probe.collect import collect
from gpuprov.probe.facts import Facts
from gpuprov.probe.payload import ANSWER_LIMIT, Parameters
from gpuprov.ssh.transport import ConnectionLimits, Target, open_session

LIMITS = ConnectionLimits(command_s=60, answer_bytes=ANSWER_LIMIT)


@lru_cache(maxsize=4)
def preflight_values(part: str) -> dict[str, Any]:
    """Return variables of the role preflight, from the role's file `defaults` or `vars`, for checks that
    precede the role.
    """
    values: dict[str, Any] = yaml.safe_load((share("roles") / "preflight" / part / "main.yml").read_text())
    return values


def gpu_users(facts: Facts) -> list[str]:
    """Return the programs (`NAME (PID)`) and containers (`container NAME`) that use GPUs.

    NVIDIA's own daemons do not count.
    """
    bystanders = preflight_values("vars")["__preflight_question"]["bystanders"]
    users = [f"{name} ({pid})" for pid, name in facts.gpu_use.processes.items() if name not in bystanders]
    return [*users, *(f"container {name}" for name in facts.gpu_use.containers)]


def refuse_running_jobs(way: Target, password: str | None) -> None:
    """Refuse a reboot while the GPUs are in use.

    Raises:
        Refused: the GPUs are in use; the message lists the programs and containers.
        GpuprovError: the node does not report their use.
    """
    with open_session(way, LIMITS) as session:
        facts = collect(session, Parameters(collectors=("gpu_use",)), password=password)
    if users := gpu_users(facts):
        raise Refused(
            f"the GPUs are in use by {shortened(', '.join(users))}",
            do="wait until they are done, then apply again",
        )
